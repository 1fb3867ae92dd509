"""What a start may do. ``look`` finds out and changes nothing; ``take`` makes the sinks this run's, once the log is.

Everything is looked at before the log is read, so that a log that lacks what sinks have seen must have lost it.
"""

from __future__ import annotations

import logging
import os
import socket
from datetime import UTC, datetime
from typing import assert_never

from tidegate.core.checkpoint.effects import Replaced
from tidegate.core.checkpoint.events import Followed, LogRead, RestoreRequested
from tidegate.core.checkpoint.prepare import PlanShape
from tidegate.core.log.owner import Claim, Holder, Owner, Seen, sinks_newer
from tidegate.core.log.resolve import (
    AlreadyFinished,
    Decision,
    FallBack,
    Refuse,
    RestoreChoice,
    RestoreFrom,
    StartFresh,
    resolve,
)
from tidegate.core.log.view import LogView, Takeover
from tidegate.errors import CorruptDataError, FencedError, InvalidUseError
from tidegate.ids import Epoch, Slot, Term
from tidegate.runtime.logstore import LogStore
from tidegate.runtime.report import stepped_down
from tidegate.runtime.sinks import SinkPublisher

log = logging.getLogger("tidegate")


class Opening:
    """One start of one job. Calls block; one caller at a time."""

    def __init__(
        self, log_store: LogStore, publisher: SinkPublisher, shape: PlanShape, run: str, *, stays: bool, restore: RestoreChoice,
        overwrite: bool, append: bool, moved: bool = False,
    ) -> None:  # fmt: skip
        self._log = log_store
        self._publisher = publisher
        self._shape = shape
        self._run = run
        self._stays = stays
        self._choice: RestoreChoice = restore
        self._overwrite = overwrite
        self._append = append and moved
        self._moved = moved
        self._since = datetime.now(UTC).isoformat(timespec="seconds")
        self._holders: dict[str, Holder] = {}
        self._seen = Seen()
        self.read = LogRead(())
        self.restored_from: Epoch | None = None
        self.skipped: tuple[tuple[int, str], ...] = ()
        """Damaged checkpoints that were passed over: epoch and why, newest first."""
        self.notes: list[str] = []

    # -- without changing anything ---------------------------------------------------------------------------------

    def look(self) -> Decision:
        """Read everything and refuse a start that can't be."""
        self._publisher.check()
        identity = self._log.identity()
        self._seen = self._look_at_sinks(identity)
        self.read = self._log.recent()
        view = self.read.view()
        self._log.warn_of(view.damage)
        decision = self.resolve(view)
        if isinstance(decision, Refuse):
            raise InvalidUseError(decision.why)
        unread = "" if view.next_slot else self._run  # a log that has begun and whose name can't be read, or a new one
        self._check_sinks(decision, identity or unread, view.next_slot)
        if not isinstance(decision, StartFresh):
            self._check_branch(view, identity)
            self._check_lineage(view, decision.manifest.epoch)
            self.restored_from = decision.manifest.epoch
        return decision

    def resolve(self, view: LogView) -> Decision:
        """What to start from, of what the log says now."""
        can = self._publisher.hiding
        return resolve(view, self._shape, self._log.fault, self._choice, **can, sinks_newer=self.sinks_newer(view))

    def sinks_newer(self, view: LogView) -> str | None:
        """Why the sinks are newer than the log, if they are."""
        return sinks_newer(view, self._seen)

    def request(self, decision: Decision, view: LogView) -> RestoreRequested:
        """A decision as the coordinator takes it. From now on the newest checkpoint counts, and sinks are not newer."""
        newer = self.sinks_newer(view) is not None
        self._choice, self._seen = "latest", Seen()
        match decision:
            case StartFresh():
                return RestoreRequested(None)
            case RestoreFrom(manifest) | AlreadyFinished(manifest):
                return RestoreRequested(manifest.epoch, newer)
            case FallBack(manifest, skipped):
                self._skip(manifest.epoch, skipped)
                return RestoreRequested(manifest.epoch, newer)
            case Refuse(why):
                raise InvalidUseError(why)
            case _:
                assert_never(decision)

    def _skip(self, epoch: Epoch, skipped: tuple[tuple[int, str], ...]) -> None:
        self.restored_from, self.skipped = epoch, skipped
        for each, why in skipped:
            log.warning("checkpoint skipped: %s epoch=%s job=%s", why, each, self._log.paths.job)

    def _look_at_sinks(self, identity: str | None) -> Seen:
        self._holders = self._publisher.holders()
        mine = {name: each for name, each in self._holders.items() if identity is not None and each.owner.log == identity}
        others = self._holders.keys() - mine.keys()
        shown = [number for name, number in self._publisher.newest_ids().items() if name not in others]
        epochs = [max(each.epoch, each.owner.term) for each in mine.values()]
        return Seen(
            Epoch(max([self._log.latest(), *epochs])),
            max([0, *shown, *(each.checkpoint_id for each in mine.values())]),
        )

    def _check_sinks(self, decision: Decision, identity: str, next_slot: Slot) -> None:
        self._publisher.check_claims(self._claims(decision, identity, Term(next_slot)))
        if isinstance(decision, StartFresh) and self._moved and not self._append:
            self._publisher.refuse_left_behind()
        if isinstance(decision, StartFresh) and not self._may_have_rows:
            self._publisher.check_empty()

    def _check_branch(self, view: LogView, identity: str | None) -> None:
        """The sinks' last run must be a leader of this log: of two copies that both went on, sinks follow one."""
        for name, holder in self._holders.items():
            owner = holder.owner
            if not owner.run or owner.log != identity or owner.term >= view.next_slot:
                continue
            try:
                entry = self._log.entry(owner.term)
            except (CorruptDataError, FileNotFoundError):
                continue  # nothing is known of it, then
            if not isinstance(entry, Takeover) or entry.leader != owner.run:
                raise InvalidUseError(
                    f"the sink {name!r} was last written by a run of another copy of this store, and both went on since: put "
                    f"that copy back, or start with restore='none' and overwrite=True {owner.whereabouts}"
                )

    def _check_lineage(self, view: LogView, epoch: Epoch) -> None:
        """A lost part of the log may have gone back to an older epoch: what it hid can't be shown again."""
        lineage = set(view.lineage())
        kept = [m for m in view.held() if m.epoch in lineage and m.epoch <= epoch] if self.sinks_newer(view) else []
        if self._publisher.hides(c for manifest in kept for c in manifest.committables):
            raise InvalidUseError(
                "the log has lost entries, or an older copy of the store was put back, and a restore among them has hidden rows "
                "that this log counts as published: put the newest copy back, restore an older epoch, or start with "
                f"restore='none' and overwrite=True epoch={epoch}"
            )

    # -- changing things -------------------------------------------------------------------------------------------

    def take(self, view: LogView, term: Term) -> Decision:
        """Make the sinks this run's, and empty if that was asked for. AFTER the takeover is in the log."""
        decision = self.resolve(view)
        if isinstance(decision, FallBack | Refuse):
            self._check_leads(view)
        if isinstance(decision, Refuse):
            raise InvalidUseError(decision.why)
        self._publisher.claim(self._claims(decision, self._log.identity() or "", term))
        match decision:
            case StartFresh() if self._append:
                self._publisher.adopt()  # the user says that sinks show what the savepoint's job had written, and no more
            case StartFresh() if self._overwrite:
                # With a head the log must first say that the job starts anew: else a crash here would leave it without its rows.
                self._publisher.clear_wanted = True
                if view.head_epoch is None:
                    self._publisher.clear()
            case StartFresh():
                self._publisher.check_empty()
            case RestoreFrom(manifest) | FallBack(manifest) | AlreadyFinished(manifest):
                self.restored_from = manifest.epoch
                self._publisher.note(manifest.epoch, manifest.checkpoint_id)
            case _:
                assert_never(decision)
        self._say(decision, view)
        return decision

    def _check_leads(self, view: LogView) -> None:
        """Another leader may have collected what seems to be damaged."""
        slot = Slot(view.next_slot - 1)
        found = self._log.check(slot)
        if isinstance(found, Followed):
            raise FencedError(stepped_down(Replaced(found.by, Slot(slot + 1))))

    @property
    def _may_have_rows(self) -> bool:
        return self._overwrite or self._append

    def _claims(self, decision: Decision, identity: str, term: Term) -> dict[str, Claim]:
        take = isinstance(decision, StartFresh) and self._may_have_rows
        holders = self._holders
        return {
            name: Claim(
                mine=self._owner(name, identity, term), take=take, seen=holders[name].owner.run if name in holders else None
            )
            for name in self._publisher.sinks
        }

    def _owner(self, sink: str, identity: str, term: Term) -> Owner:
        return Owner(
            sink=sink,
            job=self._log.paths.job,
            log=identity,
            term=term,
            run=self._run,
            host=socket.gethostname(),
            pid=os.getpid(),
            since=self._since,
            store=self._log.store.url if self._stays else None,
        )

    def _say(self, decision: Decision, view: LogView) -> None:
        why = self.sinks_newer(view)
        if why is not None and not isinstance(decision, StartFresh | Refuse):
            self._note(
                "the sinks are newer than the log, an older copy of the store was put back or its newest entries are lost: what "
                f"is newer than epoch {decision.manifest.epoch} is hidden and will be computed again ({why})"
            )
        if isinstance(decision, AlreadyFinished):
            self._note(
                f"the job has finished at epoch {decision.manifest.epoch} and reads nothing more, new files included: start it "
                "with restore='none' and overwrite=True to read everything again, under another name to read other files, or "
                "read with continuous=True where files keep coming"
            )

    def _note(self, text: str) -> None:
        self.notes.append(text)
        log.warning("%s job=%s", text, self._log.paths.job)
