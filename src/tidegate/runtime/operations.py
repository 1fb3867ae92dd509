"""What may be asked of a running leader over its control line, by people's tools and by its driver. One verb, one function."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from tidegate.core.failure.restart import FailureKind
from tidegate.errors import CheckpointDisabled, InvalidUseError, ProtocolError
from tidegate.runtime.calls import answer, arguments_of, refusal
from tidegate.runtime.gang import Exit, NodeConnection
from tidegate.runtime.savepoint import savepoint_place, shown_place, write_savepoint
from tidegate.wire._gen import control_pb2 as pb

if TYPE_CHECKING:
    from tidegate.runtime.leader import Leader

log = logging.getLogger("tidegate")


class Operations:
    """Answers calls. Called from network threads; what waits is answered when it is done."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader

    def called(self, connection: NodeConnection, call: pb.Call) -> None:
        """Somebody asks."""

        def reply(message: pb.Reply) -> None:
            connection.send(pb.CoordinatorMessage(reply=message))

        try:
            result = self._do(connection, call.verb, arguments_of(call))
        except Exception as error:
            reply(refusal(call, error))
            return
        if not isinstance(result, Future):
            reply(answer(call, result))
            return

        def done(future: Future[Any]) -> None:
            error = future.exception()
            reply(answer(call, future.result()) if error is None else refusal(call, error))

        result.add_done_callback(done)

    def _do(self, connection: NodeConnection, verb: str, arguments: dict[str, Any]) -> Any:
        leader = self._leader
        match verb:
            case "status":
                return leader.about()
            case "metrics":
                return leader.metrics()
            case "checkpoints":
                return leader.checkpoints()
            case "checkpoint":
                return self._checkpoint(arguments.get("savepoint"))
            case "savepoint":
                return self._savepoint(str(arguments["path"]))
            case "cancel":
                return leader.cancel_checkpoint(int(arguments["checkpoint_id"]))
            case "stop":
                leader.stop(drain=bool(arguments.get("drain", False)))
                return leader.about()
            case "exited":
                why = Exit(FailureKind(arguments["kind"]), str(arguments["text"])) if "kind" in arguments else None
                leader.driver_exited(connection, int(arguments["gang"]), why)
                return None
            case _:
                raise ProtocolError(f"this leader knows no such verb verb={verb!r}")

    def _checkpoint(self, savepoint: str | None) -> Future[int]:
        if not self._leader.checkpointing:
            raise CheckpointDisabled("the job takes no checkpoints: start it with an interval")
        return self._leader.request_checkpoint(savepoint)

    def _savepoint(self, path: str) -> Future[int]:
        """Take one and copy it from here, on its own thread."""
        if "://" not in path and not path.startswith("/"):
            raise InvalidUseError(f"a savepoint needs an absolute path or a URL path={path}")
        return self._leader.in_background("savepoints", lambda: self._write_savepoint(path))

    def _write_savepoint(self, path: str) -> int:
        url = savepoint_place(path)
        epoch: int = self._checkpoint(shown_place(url)).result()
        write_savepoint(self._leader.log, epoch, url)
        return epoch
