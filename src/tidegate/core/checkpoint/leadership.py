"""The right to write the log, and what a leader writes there: takeover, restore, commit, base.

It knows the log and the store's answers. What follows from an entry for gangs, sinks and checkpoints is the coordinator's matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from tidegate.core.checkpoint.effects import CheckLog, Hide, PutEntry, Replaced, Stamp, StoreSilent, TrimLog, Unnamed
from tidegate.core.checkpoint.events import Followed, LogChecked, LogRead, PutAnswered
from tidegate.core.checkpoint.manifest import CheckpointManifest
from tidegate.core.checkpoint.policy import DistributedCheckpointConfig
from tidegate.core.log.append import Landed, LogAppender, NotAsked, PutOutcome, StillOpen, Taken
from tidegate.core.log.confirm import LogConfirmer
from tidegate.core.log.entries import Role
from tidegate.core.log.retain import trim_bound
from tidegate.core.log.view import Commit, Damaged, LogView, Restore, Takeover
from tidegate.ids import Epoch, GangNumber, Term


@dataclass(frozen=True, slots=True)
class OutrunTakeover:
    """The slot of our takeover went to another entry. What is there may be older than it seems: the slot may have been trimmed
    before. Read the log again."""


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The log ends with what we know of it."""


Settled: TypeAlias = Landed | OutrunTakeover | Replaced | StillOpen | NotAsked


class Leadership:
    """One leader's hold on the log. ``log`` is what it knows of the log; read it, never change it.

    ``host`` and ``pid`` are for people: who is told that it was replaced wants to know by whom.
    """

    def __init__(
        self, config: DistributedCheckpointConfig, leader: str, host: str = "", pid: int = 0, role: Role = "driver"
    ) -> None:
        self.leader, self.host, self.pid, self.role = leader, host, pid, role
        self.log = LogView()
        self.term: Term | None = None
        self._config = config
        self._appender = LogAppender(config.put_retry_ms, config.storage_timeout_ms)
        self._confirmer = LogConfirmer(config.put_retry_ms, config.storage_timeout_ms)
        self._writes = 0

    @property
    def is_writing(self) -> bool:
        """True between a put and its definite answer: its slot is spoken for."""
        return self._appender.is_open

    @property
    def own_term(self) -> Term:
        """The term; there is one after the takeover."""
        assert self.term is not None, "only a leader after its takeover gives orders"
        return self.term

    @property
    def is_first_of_all(self) -> bool:
        """Nobody but us has ever led, and nobody has restored anything."""
        return self.term == 0 and self.log.next_slot == 1

    @property
    def can_adopt(self) -> bool:
        """A gang of an earlier leader may go on under this one: there was one, it is not done, and its head is there."""
        finished = self.log.head is not None and self.log.head.final
        return bool(self.term) and not finished and not self.log.head_is_lost

    def stamp(self) -> Stamp:
        """What every command to a node carries."""
        return Stamp(self.log.gang, self.own_term, self.log.head_epoch, self.log.last_id)

    # -- what is written

    def read(self, event: LogRead) -> None:
        """This is the log. It is taken over from here."""
        self.log = event.view()

    def take_over(self, now_ms: int, wall_ms: int) -> PutEntry:
        """Claim the next slot, and with it all after it."""
        slot = self.log.next_slot
        entry = Takeover(
            slot=slot,
            term=Term(slot),
            write_id=self._write_id(),
            leader=self.leader,
            host=self.host,
            pid=self.pid,
            wall_ms=wall_ms,
            role=self.role,
        )
        return self._appender.put(entry, now_ms)

    def restore(self, parent: Epoch | None, reason: str, now_ms: int) -> PutEntry:
        """A gang starts from this epoch. The slot is its number."""
        slot = self.log.next_slot
        entry = Restore(slot=slot, term=self.own_term, write_id=self._write_id(), parent=parent, reason=reason)
        return self._appender.put(entry, now_ms)

    def new_commit(self, manifest: CheckpointManifest) -> Commit:
        """The entry of this manifest, to be put by ``commit``."""
        return Commit(slot=manifest.epoch, term=manifest.term, write_id=self._write_id(), manifest=manifest)

    def commit(self, entry: Commit, now_ms: int) -> PutEntry:
        """The checkpoint's commit point, once it has landed."""
        return self._appender.put(entry, now_ms)

    def base(self, now_ms: int) -> PutEntry | None:
        """Sum the log up if there are enough entries since the last base. Only where no attempt aims for its slot."""
        due = self.log.since_base >= self._config.base_every
        base = self.log.summed_up(self._write_id()) if due else None
        return None if base is None else self._appender.put(base, now_ms)

    def trim(self) -> TrimLog | None:
        """What lies before the last but one base may go."""
        bound = trim_bound(self.log.bases) if self._config.auto_gc else None
        return None if bound is None else TrimLog(*bound)

    # -- what the store answers

    def answered(self, event: PutAnswered, now_ms: int) -> Settled:
        """Take the answer to a put. An entry that has landed is part of ``log``."""
        return self._settled(self._appender.answered(event, now_ms))

    def _settled(self, outcome: PutOutcome) -> Settled:
        match outcome:
            case Landed(entry):
                self.log.apply(entry)
                if isinstance(entry, Takeover):
                    self.term = entry.term
                return outcome
            case Taken(_, Takeover()):
                return OutrunTakeover()
            case Taken(Damaged() as entry, _):
                return Replaced(None, entry.slot, entry.why)
            case Taken(entry, _):
                return Replaced(entry if isinstance(entry, Takeover) else None, entry.slot)
            case StillOpen() | NotAsked():
                return outcome
            case _:
                assert_never(outcome)

    def confirm(self, now_ms: int) -> CheckLog:
        """Ask whether the log ends with what we know of it."""
        return self._confirmer.ask(self.log.next_slot - 1, now_ms)

    def checked(self, event: LogChecked, now_ms: int) -> Confirmed | Replaced | StillOpen:
        """Take the answer to ``confirm``. Whoever finds out that the log has gone on may say so unasked."""
        asked = self._confirmer.answered(event, now_ms)
        if isinstance(event.answer, Followed):
            return Replaced(event.answer.by, event.slot + 1)
        return Confirmed() if asked else StillOpen()

    def ask_again(self, now_ms: int) -> Iterator[PutEntry | CheckLog | StoreSilent]:
        """Whatever the store has not answered in time. After ``StoreSilent`` there is nothing left to ask."""
        for asking in (self._appender, self._confirmer):
            if asking.gave_up(now_ms):
                yield StoreSilent(asking.waited_ms(now_ms), asking.why or "it said nothing")
                return
            if order := asking.due(now_ms):
                yield order

    def deadline_ms(self) -> int | None:
        """When ``ask_again`` has something to say."""
        times = (self._appender.deadline_ms, self._confirmer.deadline_ms)
        return min((time for time in times if time is not None), default=None)

    # -- what follows for sinks

    def hidden_by(self, entry: Restore, sinks_ahead: bool) -> Hide | None:
        """What sinks must not show after this restore."""
        head, unnamed = self.log.head, None
        if head is not None and (sinks_ahead or self.log.lost_after(head.epoch) is not None):
            unnamed = Unnamed(head.checkpoint_id, head.committables, sinks_ahead)
        lost, fresh = self.log.off_lineage(), entry.parent is None
        return Hide(GangNumber(entry.slot), lost, fresh, unnamed) if lost or fresh or unnamed else None

    def hidden_after(self, final: CheckpointManifest) -> Hide:
        """What sinks must not show beside a final checkpoint: a lost part of the log named it."""
        return Hide(self.log.gang, (), unnamed=Unnamed(final.checkpoint_id, final.committables, every_gang=True))

    def _write_id(self) -> str:
        self._writes += 1
        return f"{self.leader}/{self._writes}"
