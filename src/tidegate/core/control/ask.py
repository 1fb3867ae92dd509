"""What the head of a pipeline is asked for and what it orders. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tidegate.core.control.parameters import ParameterEntry
from tidegate.core.control.signals import (
    BarrierControlSignal,
    BarrierControlSignalKind,
    InstantControlSignal,
    ParameterVersion,
    StoredPayload,
)
from tidegate.errors import TidegateError

SignalMode: TypeAlias = Literal["barrier", "instant"]


@dataclass(frozen=True, slots=True)
class SignalRequest:
    """A signal that somebody waits for. ``entry`` is what manifests will say of the parameter that it sets."""

    request_id: str
    kind: BarrierControlSignalKind
    mode: SignalMode = "barrier"
    payload: bytes = b""
    stored: StoredPayload | None = None
    entry: ParameterEntry | None = None

    @property
    def parameter(self) -> ParameterVersion | None:
        """Which parameter it sets."""
        return None if self.entry is None else ParameterVersion(self.entry.name, self.entry.version)


@dataclass(frozen=True, slots=True)
class SignalAnswer:
    """A signal was seen at all terminal points. ``latency_ms``: by node, from its injection until its sinks had seen it."""

    id: int
    kind: str
    mode: SignalMode
    latency_ms: Mapping[int, int] = field(hash=False)

    @property
    def total_ms(self) -> int:
        """Until the last node's sinks had seen it."""
        return max(self.latency_ms.values())


# -- orders --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FetchPayload:
    """Every node reads and checks the payload, BEFORE the signal is emitted. Answered by ``fetched``."""

    signal: BarrierControlSignal


@dataclass(frozen=True, slots=True)
class EmitSignal:
    """Every source emits the signal now. Answered by ``emitted``, and by ``seen`` when it has passed."""

    signal: BarrierControlSignal


@dataclass(frozen=True, slots=True)
class SendInstant:
    """Every node hands the signal to its functions and sinks now. Answered by ``seen``."""

    signal: InstantControlSignal


@dataclass(frozen=True, slots=True)
class ReleaseCheckpoint:
    """It is this checkpoint's turn to be injected."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class SignalAnswered:
    """Tell whoever asked."""

    request_id: str
    answer: SignalAnswer


@dataclass(frozen=True, slots=True, eq=False)
class SignalFailed:
    """Tell whoever asked that there will be no answer."""

    request_id: str
    error: TidegateError


@dataclass(frozen=True, slots=True)
class ControlChanged:
    """What checkpoints that are triggered from now on must know.

    ``pinned``: a signal is on its way, so barriers may not overtake. ``parameters``: the values at their cut. ``objects``:
    payloads that no manifest may name yet and that must not be deleted.
    """

    pinned: bool = False
    parameters: tuple[ParameterEntry, ...] = ()
    objects: frozenset[str] = frozenset()


ControlEffect: TypeAlias = (
    FetchPayload | EmitSignal | SendInstant | ReleaseCheckpoint | SignalAnswered | SignalFailed | ControlChanged
)
