"""What a window is: which rows of a key are aggregated together in time. Each kind has a file of its own.

Nothing else knows the kinds. A new one is a subclass here or in a user's file, and an object with ``over`` that makes it for the
unit of an event-time column.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

from tidegate.errors import InvalidUseError
from tidegate.plan.operator import Operator, OperatorContext
from tidegate.state.partial import Layout
from tidegate.state.windows import Windows
from tidegate.values import Json

if TYPE_CHECKING:
    from tidegate.operators.aggregate import WindowAggregate

MakePartials: TypeAlias = Callable[[pa.Table], pa.RecordBatch]


@runtime_checkable
class TimeWindow(Protocol):
    """A window as a user writes it: durations, not yet in any column's unit."""

    def over(self, where: str, event_time: pa.DataType) -> Window:
        """The same in the unit of an event-time column; ``where`` is for messages."""


class Window(ABC):
    """Windows in an event-time column's unit. ``time_columns`` say where in time a partial is."""

    time_columns: ClassVar[tuple[str, ...]]
    allowed_lateness: int

    @abstractmethod
    def partials(self, layout: Layout, event_time: str, output: pa.Schema) -> MakePartials:
        """What makes partials of rows."""

    @abstractmethod
    def aggregate(self, spec: WindowAggregate, context: OperatorContext) -> Operator:
        """The operator that keeps partials and emits results when windows close."""

    @abstractmethod
    def shape(self) -> dict[str, Json]:
        """What stored state depends on. ``kind`` is one of its entries."""

    @abstractmethod
    def text(self, event_time: pa.DataType) -> str:
        """For people."""

    def fixed(self, where: str) -> Windows:
        """Its arithmetic, for operators that need the same bounds for every row of a time; raises if it has none."""
        raise InvalidUseError(f"{where}: a {self.shape()['kind']} has other bounds on each side, use tumbling or sliding windows")

    def meaning(self) -> Json:
        """What distinguishes it in derived names. More patience with late rows is the same window."""
        return [value for name, value in self.shape().items() if name != "allowed_lateness"]
