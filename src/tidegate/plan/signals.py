"""Who hears of control signals: the user's side and the operators' side."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tidegate.core.control.signals import ParameterVersion


@runtime_checkable
class HearsSignals(Protocol):
    """A function object of ``map_batches`` or ``process``, or a sink's writer, that wants to hear of the user's signals."""

    def on_signal(self, kind: str, payload: bytes) -> None:
        """A signal came: a barrier signal between the same two rows everywhere, an instant one at any moment.

        Called on the thread that makes all other calls of this object. What it remembers is no part of a checkpoint.
        """


@dataclass(frozen=True, slots=True)
class Told:
    """A signal as operators hear it. ``value``: what the parameter is from now on, if it sets one."""

    kind: str
    payload: bytes = b""
    parameter: ParameterVersion | None = None
    value: object = None


@runtime_checkable
class Signalled(Protocol):
    """An operator that signals are handed to."""

    def signal(self, told: Told) -> Sequence[Future[None]]:
        """Between two batches. Returns the calls of the user's code that follow from it; what they raise is in them."""
