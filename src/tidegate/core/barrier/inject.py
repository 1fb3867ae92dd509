"""Where a barrier enters the data: commands come in from any thread, one barrier at a time goes out.

The loop thread owns the injector; other threads only hold its handle. A command is one immutable number in a
deque, whose append and popleft are atomic: no command is torn, none is lost between a look and a clear. A
taken barrier is held until the shell says that it is on all outputs. Time and ids come in as arguments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from tidegate.core.barrier.messages import CheckpointBarrier, check_barrier_numbers
from tidegate.errors import (
    BarrierInjectionFailed,
    ChannelFull,
    CheckpointAbortedError,
    EpochMismatch,
    InvalidUseError,
    ProtocolError,
)
from tidegate.ids import EPOCH_LIMIT, NO_EPOCH, U64_LIMIT, Epoch

PENDING_MAX = 1_024
"""Commands that may wait for one poll. A few threads at once may go over it by one each."""

REPORTS_MAX = 1_024
"""Reports that wait for the shell; the oldest go first, and ``reports_lost`` counts them."""

_NEVER_MS = 1 << 63
_ID_SHIFT = 64
_EPOCH_SHIFT = 16
_UNALIGNED_BIT = 1 << 15
_RESERVED = _UNALIGNED_BIT - 1


class PackedBarrierCmd(int):
    """A command in one 128-bit number: id in bits 127-64, epoch in 63-16, unaligned in 15, the rest zero."""

    __slots__ = ()

    EMPTY: ClassVar[PackedBarrierCmd]
    """The number 0: no command."""

    def __new__(cls, raw: int) -> PackedBarrierCmd:
        if not 0 <= raw < 1 << 128 or raw & _RESERVED or (raw and raw < 1 << _ID_SHIFT):
            raise InvalidUseError(f"no barrier command has this form raw={raw:#x}")
        return super().__new__(cls, raw)

    @classmethod
    def new(cls, checkpoint_id: int, epoch: Epoch, unaligned: bool = False) -> PackedBarrierCmd:
        """Pack a command. An id of 0 and an epoch of 2^48 or more are refused, never truncated."""
        check_barrier_numbers(checkpoint_id, epoch)
        flag = _UNALIGNED_BIT if unaligned else 0
        return cls(checkpoint_id << _ID_SHIFT | epoch << _EPOCH_SHIFT | flag)

    @property
    def checkpoint_id(self) -> int:
        """The id; 0 in the empty command."""
        return int(self) >> _ID_SHIFT

    @property
    def epoch(self) -> Epoch:
        """The 48 bits of the epoch."""
        return Epoch((int(self) >> _EPOCH_SHIFT) & (EPOCH_LIMIT - 1))

    @property
    def is_unaligned(self) -> bool:
        """True when the barrier is to overtake data."""
        return bool(int(self) & _UNALIGNED_BIT)

    @property
    def is_empty(self) -> bool:
        """True for ``EMPTY`` alone."""
        return int(self) == 0

    def barrier(self) -> CheckpointBarrier:
        """The barrier that this command asks for."""
        kind = CheckpointBarrier.new_unaligned if self.is_unaligned else CheckpointBarrier
        return kind(self.checkpoint_id, self.epoch)


PackedBarrierCmd.EMPTY = PackedBarrierCmd(0)


@dataclass(frozen=True, slots=True)
class InjectBarrierCommand:
    """The coordinator asks a source for a barrier."""

    checkpoint_id: int
    epoch: Epoch
    is_unaligned: bool = False

    def __post_init__(self) -> None:
        check_barrier_numbers(self.checkpoint_id, self.epoch)

    def pack(self) -> PackedBarrierCmd:
        """The same in one number."""
        return PackedBarrierCmd.new(self.checkpoint_id, self.epoch, self.is_unaligned)


@dataclass(frozen=True, slots=True)
class BarrierInjectorConfig:
    """``periodic_interval_ms=None`` waits for commands alone; ``source_id`` is for errors and logs."""

    periodic_interval_ms: int | None = 10_000
    source_id: str = ""

    def __post_init__(self) -> None:
        if self.periodic_interval_ms is not None and self.periodic_interval_ms <= 0:
            raise InvalidUseError(f"the interval must be positive, or None periodic_interval_ms={self.periodic_interval_ms}")


@dataclass(frozen=True, slots=True)
class Superseded:
    """This command was never emitted: a newer one came before the poll."""

    checkpoint_id: int
    by: int


@dataclass(frozen=True, slots=True)
class Refused:
    """This command came too late: its id is at or below one taken, aborted or asked for later."""

    checkpoint_id: int
    error: EpochMismatch


InjectionReport: TypeAlias = Superseded | Refused


class _Mailbox:
    """What the threads share. Only the loop thread pops, and only it writes ``highest``."""

    __slots__ = ("commands", "highest")

    def __init__(self, highest: int) -> None:
        self.commands: deque[PackedBarrierCmd] = deque()
        self.highest = highest


class BarrierInjectorHandle:
    """The coordinator's side. Any thread may call it; nothing blocks."""

    __slots__ = ("_mailbox",)

    def __init__(self, mailbox: _Mailbox) -> None:
        self._mailbox = mailbox

    def inject(self, command: InjectBarrierCommand) -> None:
        """Ask for a barrier at the next poll. ``EpochMismatch``: its id is dead. ``ChannelFull``: no polls.

        A command that loses against one of another thread at the same moment is in the injector's reports.
        """
        mailbox = self._mailbox
        if command.checkpoint_id <= mailbox.highest:
            raise _stale(command.checkpoint_id, mailbox.highest)
        if len(mailbox.commands) >= PENDING_MAX:
            raise ChannelFull(
                f"the source takes no barrier commands now: abort this checkpoint "
                f"checkpoint_id={command.checkpoint_id} pending={PENDING_MAX}"
            )
        mailbox.commands.append(command.pack())


class CheckpointBarrierInjector:
    """Sits in a source's loop and says, between two batches, whether a barrier is due.

    ``dead_through`` is the highest id that is over already: nothing at or below it is ever emitted. With a
    periodic interval ``allocate`` returns each barrier's id, from the same counter as all other ids of the job.
    """

    __slots__ = (
        "_allocate", "_due_ms", "_held", "_mailbox", "_reports",
        "barriers_injected", "config", "current_epoch", "reports_lost",
    )  # fmt: skip

    def __init__(
        self,
        config: BarrierInjectorConfig | None = None,
        *,
        allocate: Callable[[], int] | None = None,
        now_ms: int = 0,
        epoch: Epoch = NO_EPOCH,
        dead_through: int = 0,
    ) -> None:
        self.config = config if config is not None else BarrierInjectorConfig()
        interval_ms = self.config.periodic_interval_ms
        if interval_ms is not None and allocate is None:
            raise InvalidUseError("periodic injection needs ids: pass allocate, or periodic_interval_ms=None")
        self.barriers_injected = 0
        self.current_epoch = epoch
        self.reports_lost = 0
        self._allocate = allocate
        self._due_ms = _NEVER_MS if interval_ms is None else now_ms + interval_ms
        self._held: CheckpointBarrier | None = None
        self._mailbox = _Mailbox(dead_through)
        self._reports: deque[InjectionReport] = deque()

    def coordinator_handle(self) -> BarrierInjectorHandle:
        """A handle for other threads. All handles lead to this injector."""
        return BarrierInjectorHandle(self._mailbox)

    @property
    def held(self) -> CheckpointBarrier | None:
        """The barrier that is taken and not yet on all outputs."""
        return self._held

    @property
    def highest(self) -> int:
        """The highest id taken or dead; ids at or below it are refused."""
        return self._mailbox.highest

    def poll_barrier(self, now_ms: int) -> CheckpointBarrier | None:
        """The barrier to emit now, if any. The same one again until ``emitted`` or ``failed`` or an abort."""
        if not self._mailbox.commands and now_ms < self._due_ms and self._held is None:
            return None
        if self._held is None:
            self._held = self._take(now_ms)
        return self._held

    def emitted(self, barrier: CheckpointBarrier) -> None:
        """The held barrier is on all outputs. Only now the next one may be taken."""
        self._check_held(barrier)
        self._held = None
        self.current_epoch = barrier.epoch
        self.barriers_injected += 1

    def failed(self, barrier: CheckpointBarrier, reason: str) -> BarrierInjectionFailed:
        """An output is closed for good. The barrier is dropped, its id dead. Report the error."""
        self._check_held(barrier)
        self._held = None
        return BarrierInjectionFailed(
            f"the barrier could not be put on all outputs: {reason} "
            f"source={self.config.source_id} checkpoint_id={barrier.checkpoint_id}",
            checkpoint_id=barrier.checkpoint_id,
        )

    def abort(self, checkpoint_id: int) -> CheckpointAbortedError | None:
        """Every id up to this one is dead. Returns an error when that drops the held barrier. Idempotent."""
        if not 0 < checkpoint_id < U64_LIMIT:
            raise InvalidUseError(f"no such checkpoint id checkpoint_id={checkpoint_id}")
        self._mailbox.highest = max(self._mailbox.highest, checkpoint_id)
        held = self._held
        if held is None or held.checkpoint_id > checkpoint_id:
            return None
        self._held = None
        return CheckpointAbortedError(
            f"aborted before its barrier was on all outputs checkpoint_id={held.checkpoint_id}",
            checkpoint_id=held.checkpoint_id,
        )

    def take_reports(self) -> list[InjectionReport]:
        """What became of the commands that were not emitted, oldest first. Each is returned once."""
        reports = list(self._reports)
        self._reports.clear()
        return reports

    # -- taking ------------------------------------------------------------------------------------

    def _take(self, now_ms: int) -> CheckpointBarrier | None:
        """A command goes before the timer, and starts the timer anew."""
        command = self._drain()
        if command is not None:
            barrier = command.barrier()
        elif now_ms >= self._due_ms:
            barrier = self._periodic()
        else:
            return None
        self._mailbox.highest = barrier.checkpoint_id
        if self.config.periodic_interval_ms is not None:
            self._due_ms = now_ms + self.config.periodic_interval_ms
        return barrier

    def _drain(self) -> PackedBarrierCmd | None:
        """Take every command that waits. The one with the highest id stands, whatever order they came in."""
        standing: PackedBarrierCmd | None = None
        highest = self._mailbox.highest
        for _ in range(len(self._mailbox.commands)):
            command = self._mailbox.commands.popleft()
            if command.checkpoint_id <= highest:
                self._report(Refused(command.checkpoint_id, _stale(command.checkpoint_id, highest)))
                continue
            if standing is not None:
                self._report(Superseded(standing.checkpoint_id, by=command.checkpoint_id))
            standing, highest = command, command.checkpoint_id
        return standing

    def _periodic(self) -> CheckpointBarrier:
        assert self._allocate is not None  # the constructor sees to it
        checkpoint_id = self._allocate()
        if checkpoint_id <= self._mailbox.highest:
            raise _stale(checkpoint_id, self._mailbox.highest)
        return CheckpointBarrier(checkpoint_id, Epoch(self.current_epoch + 1))

    def _report(self, report: InjectionReport) -> None:
        if len(self._reports) >= REPORTS_MAX:
            self._reports.popleft()
            self.reports_lost += 1
        self._reports.append(report)

    def _check_held(self, barrier: CheckpointBarrier) -> None:
        """By id: the shell may have set a flag on its way out."""
        if self._held is None or barrier.checkpoint_id != self._held.checkpoint_id:
            raise ProtocolError(f"this barrier is not held barrier={barrier} held={self._held}")


def _stale(checkpoint_id: int, highest: int) -> EpochMismatch:
    return EpochMismatch(f"this checkpoint id is dead: ask with a higher one checkpoint_id={checkpoint_id} highest={highest}")
