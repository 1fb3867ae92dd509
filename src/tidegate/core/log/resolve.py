"""What to start from: the log, the plan and the state of the stored objects in, one decision with its reasons
out.

It reads nothing itself. The caller brings ``fault``: called with a manifest, newest first and only as far as
needed, it looks at the manifest's objects and says what is wrong with them, or ``None``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tidegate.core.checkpoint.manifest import CheckpointManifest
from tidegate.core.checkpoint.prepare import PlanShape
from tidegate.core.log.view import LogView
from tidegate.errors import InvalidUseError
from tidegate.ids import Epoch

RestoreChoice: TypeAlias = Literal["latest", "none"] | int
FindFault: TypeAlias = Callable[[CheckpointManifest], str | None]


@dataclass(frozen=True, slots=True)
class StartFresh:
    """Begin without state."""


@dataclass(frozen=True, slots=True)
class RestoreFrom:
    """Begin from this checkpoint; it is the one that was asked for."""

    manifest: CheckpointManifest


@dataclass(frozen=True, slots=True)
class FallBack:
    """Begin from an older checkpoint than the head, because the newer ones are damaged: (epoch, why), newest
    first."""

    manifest: CheckpointManifest
    skipped: tuple[tuple[Epoch, str], ...]


@dataclass(frozen=True, slots=True)
class AlreadyFinished:
    """The job ended with this checkpoint: publish it again and be done."""

    manifest: CheckpointManifest


@dataclass(frozen=True, slots=True)
class Refuse:
    """Do not start."""

    why: str


Decision: TypeAlias = StartFresh | RestoreFrom | FallBack | AlreadyFinished | Refuse


@dataclass(frozen=True, slots=True)
class _Case:
    """What a decision is made from."""

    view: LogView
    shape: PlanShape
    fault: FindFault
    can_hide: bool
    can_hide_unnamed: bool


def resolve(
    view: LogView,
    shape: PlanShape,
    fault: FindFault,
    restore: RestoreChoice = "latest",
    *,
    can_hide: bool = True,
    can_hide_unnamed: bool = True,
    sinks_newer: str | None = None,
) -> Decision:
    """Decide. ``can_hide``: every sink can take published epochs out of sight, which going back needs.

    ``can_hide_unnamed``: also what no readable manifest names, which going back over a damaged commit needs.
    ``sinks_newer`` says why sinks have seen more than the log; that is the same as going back.
    """
    case = _Case(view, shape, fault, can_hide, can_hide_unnamed)
    if restore == "none":
        return _checked(case, None, StartFresh())
    if view.unclear is not None:
        return Refuse(
            f"the log's last word about where to start can't be read, put a copy of that file back or start"
            f" with restore='none': {view.unclear.why}"
        )
    if sinks_newer is not None and not can_hide_unnamed:
        return Refuse(
            "an older copy of the store was put back or its newest log entries are lost, and a sink can't take back what it has"
            f" published since: put the newest copy back, or start in another store and with new sinks: {sinks_newer}"
        )
    if restore != "latest":
        return _exactly(case, Epoch(restore))
    if view.head_epoch is None:
        return StartFresh()
    if view.head is None:
        return _newest_sound(case)
    return _unfit(shape, view.head) or _from_head(case, view.head)


def _exactly(case: _Case, epoch: Epoch) -> Decision:
    try:
        manifest = case.view.restorable(epoch)
    except InvalidUseError as error:
        return Refuse(str(error))
    if refusal := _unfit(case.shape, manifest):
        return refusal
    if manifest.final:
        return AlreadyFinished(manifest)
    if why := case.fault(manifest):
        return Refuse(f"the checkpoint is damaged: {why} epoch={epoch}")
    return _checked(case, epoch, RestoreFrom(manifest))


def _from_head(case: _Case, head: CheckpointManifest) -> Decision:
    return AlreadyFinished(head) if head.final else _newest_sound(case)


def _newest_sound(case: _Case) -> Decision:
    skipped: list[tuple[Epoch, str]] = []
    for epoch in case.view.reachable():
        lost = case.view.lost(epoch)
        if lost is not None:
            skipped.append((epoch, lost.why))
            continue
        manifest = case.view.restorable(epoch)
        why = case.fault(manifest)
        if why is None:
            found = FallBack(manifest, tuple(skipped)) if skipped else RestoreFrom(manifest)
            return _unfit(case.shape, manifest) or _checked(case, epoch, found)
        skipped.append((epoch, why))
    damage = "; ".join(f"epoch {epoch}: {why}" for epoch, why in skipped)
    return Refuse(f"every retained checkpoint is damaged, restore a copy of the store or start with restore='none': {damage}")


def _unfit(shape: PlanShape, manifest: CheckpointManifest) -> Refuse | None:
    if manifest.job != shape.job:
        return Refuse(f"the checkpoint is of another job job={manifest.job} expected={shape.job}")
    difference = shape.difference(manifest)
    if difference is None:
        return None
    return Refuse(f"the saved state does not fit the plan: {difference} epoch={manifest.epoch}")


def _checked(case: _Case, epoch: Epoch | None, decision: Decision) -> Decision:
    """Going back from published epochs needs sinks that can hide them. A start without state empties them."""
    view = case.view
    lost = view.lost_after(epoch)
    if lost is not None and epoch is not None and not case.can_hide_unnamed:
        return Refuse(
            "a newer log entry is damaged and a sink can't take back rows that no manifest names: put a copy of"
            f" that file back or start with restore='none': {lost.why}"
        )
    if case.can_hide:
        return decision
    kept = {e for e in view.lineage() if epoch is not None and e <= epoch}
    if lost is not None or any(c.epoch not in kept for manifest in view.held() for c in manifest.committables):
        return Refuse("a sink has published newer epochs and cannot take them back; restore the latest checkpoint")
    return decision
