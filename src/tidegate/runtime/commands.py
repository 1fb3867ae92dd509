"""The coordinator's effects on nodes, as commands of the control line."""

from __future__ import annotations

from typing import TypeAlias, assert_never

from tidegate.core.checkpoint.effects import (
    SendAbort,
    SendCommitted,
    SendFinalize,
    SendInject,
    SendPromote,
    SendStarted,
)
from tidegate.wire._gen import control_pb2 as pb

Command: TypeAlias = SendStarted | SendInject | SendFinalize | SendPromote | SendAbort | SendCommitted


def command(effect: Command) -> pb.CoordinatorMessage:
    """The message for one effect."""
    match effect:
        case SendStarted():
            return pb.CoordinatorMessage(started=_started(effect))
        case SendInject():
            inject = pb.Inject(
                term=effect.stamp.term,
                checkpoint_id=effect.checkpoint_id,
                epoch=effect.epoch,
                unaligned=effect.unaligned,
            )
            return pb.CoordinatorMessage(inject=inject)
        case SendFinalize():
            finalize = pb.Finalize(term=effect.stamp.term, checkpoint_id=effect.checkpoint_id, epoch=effect.epoch)
            return pb.CoordinatorMessage(finalize=finalize)
        case SendPromote():
            return pb.CoordinatorMessage(promote=pb.Promote(checkpoint_id=effect.checkpoint_id))
        case SendAbort():
            return pb.CoordinatorMessage(abort=pb.Abort(checkpoint_id=effect.checkpoint_id, reason=effect.reason))
        case SendCommitted():
            committed = pb.Committed(epoch=effect.epoch, checkpoint_id=effect.checkpoint_id)
            return pb.CoordinatorMessage(committed=committed)
        case _:
            assert_never(effect)


def _started(effect: SendStarted) -> pb.Started:
    started = effect.started
    return pb.Started(
        term=started.term,
        checkpoint_id=started.checkpoint_id,
        epoch=started.epoch,
        parent_epoch=-1 if started.parent is None else started.parent,
        age_ms=started.age_ms,
        timeout_ms=started.timeout_ms,
        alignment_timeout_ms=started.alignment_timeout_ms or 0,
        aligned=started.aligned,
        compacts=started.compacts,
    )
