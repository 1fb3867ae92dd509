"""What to start from: the log, the plan and the state of the stored objects in, one decision with its reasons
out.

It reads nothing itself. The caller brings ``fault``: called with a manifest, newest first and only as far as
needed, it looks at the manifest's objects and says what is wrong with them, or ``None``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tidegate.core.log import LogView
from tidegate.core.manifest import CheckpointManifest
from tidegate.core.prepare import PlanShape
from tidegate.errors import InvalidUseError

RestoreChoice: TypeAlias = Literal["latest", "none"] | int
Fault: TypeAlias = Callable[[CheckpointManifest], str | None]


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
    skipped: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class AlreadyFinished:
    """The job ended with this checkpoint: publish it again and be done."""

    manifest: CheckpointManifest


@dataclass(frozen=True, slots=True)
class Refuse:
    """Do not start."""

    why: str


Decision: TypeAlias = StartFresh | RestoreFrom | FallBack | AlreadyFinished | Refuse


def resolve(
    view: LogView, shape: PlanShape, fault: Fault, restore: RestoreChoice = "latest", *, can_hide: bool = True
) -> Decision:
    """Decide. ``can_hide``: every sink can take published epochs out of sight, which going back needs."""
    if restore == "none":
        return _checked(view, None, StartFresh(), can_hide)
    if restore != "latest":
        return _exactly(view, shape, fault, restore, can_hide)
    head = view.head
    if head is None:
        return StartFresh()
    return _unfit(shape, head) or _newest_sound(view, shape, fault, head, can_hide)


def _exactly(view: LogView, shape: PlanShape, fault: Fault, epoch: int, can_hide: bool) -> Decision:
    try:
        manifest = view.restorable(epoch)
    except InvalidUseError as error:
        return Refuse(str(error))
    if refusal := _unfit(shape, manifest):
        return refusal
    if manifest.final:
        return AlreadyFinished(manifest)
    if why := fault(manifest):
        return Refuse(f"the checkpoint is damaged: {why} epoch={epoch}")
    return _checked(view, epoch, RestoreFrom(manifest), can_hide)


def _newest_sound(
    view: LogView, shape: PlanShape, fault: Fault, head: CheckpointManifest, can_hide: bool
) -> Decision:
    if head.final:
        return AlreadyFinished(head)
    skipped: list[tuple[int, str]] = []
    for manifest in view.restorables():
        why = fault(manifest)
        if why is None:
            found = FallBack(manifest, tuple(skipped)) if skipped else RestoreFrom(manifest)
            return _unfit(shape, manifest) or _checked(view, manifest.epoch, found, can_hide)
        skipped.append((manifest.epoch, why))
    damage = "; ".join(f"epoch {epoch}: {why}" for epoch, why in skipped)
    return Refuse(
        f"every retained checkpoint is damaged, restore a copy of the store or start with restore='none':"
        f" {damage}"
    )


def _unfit(shape: PlanShape, manifest: CheckpointManifest) -> Refuse | None:
    if manifest.job != shape.job:
        return Refuse(f"the checkpoint is of another job job={manifest.job} expected={shape.job}")
    difference = shape.difference(manifest)
    if difference is None:
        return None
    return Refuse(f"the saved state does not fit the plan: {difference} epoch={manifest.epoch}")


def _checked(view: LogView, epoch: int | None, decision: Decision, can_hide: bool) -> Decision:
    """Going back from published epochs needs sinks that can hide them."""
    if can_hide:
        return decision
    kept = {e for e in view.lineage() if epoch is not None and e <= epoch}
    if any(c.epoch not in kept for manifest in view.held() for c in manifest.committables):
        return Refuse(
            "a sink has published newer epochs and cannot take them back; restore the latest checkpoint"
        )
    return decision
