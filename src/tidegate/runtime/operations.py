"""What may be asked of a running leader over its control line, by people's tools and by its driver. One verb, one function."""

from __future__ import annotations

import base64
import logging
from concurrent.futures import Future
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tidegate.core.control.ask import SignalAnswer
from tidegate.core.failure.restart import FailureKind
from tidegate.errors import CheckpointDisabled, InvalidUseError, ProtocolError
from tidegate.ids import Epoch
from tidegate.runtime.calls import answer, arguments_of, refusal
from tidegate.runtime.gang import ControlStream, Exit, GangHost
from tidegate.runtime.remotedriver import RemoteDriver
from tidegate.runtime.savepoint import savepoint_url, shown_url, write_savepoint
from tidegate.wire._gen import control_pb2 as pb

if TYPE_CHECKING:
    from tidegate.runtime.leader import Leader

log = logging.getLogger("tidegate")


class Operations:
    """Answers calls. Called from network threads; what waits is answered when it is done."""

    def __init__(self, leader: Leader, host: GangHost) -> None:
        self._leader = leader
        self._host = host

    # -- streams that are not of nodes: True, if this was about one ------------------------------------------------------

    def joined(self, connection: ControlStream) -> bool:
        """Somebody said hello."""
        host = self._host
        if connection.hello.attendant == pb.DRIVER and isinstance(host, RemoteDriver) and not self._leader.over:
            host.attach(connection)
        elif connection.hello.attendant == pb.DRIVER:
            connection.send(pb.CoordinatorMessage(stop=pb.Stop(reason="this leader has a driver of its own")))
        return connection.hello.attendant != pb.NODE

    def said(self, connection: ControlStream, message: pb.NodeMessage) -> bool:
        """Somebody said something."""
        match message.WhichOneof("body"):
            case "call":
                self.called(connection, message.call)
            case "reply":
                if isinstance(self._host, RemoteDriver):
                    self._host.replied(connection, message.reply)
            case _:
                return connection.hello.attendant != pb.NODE
        return True

    def left(self, connection: ControlStream, error: Exception | None) -> bool:
        """A stream ended."""
        if connection.hello.attendant == pb.DRIVER and isinstance(self._host, RemoteDriver):
            self._host.detach(connection, error)
        return connection.hello.attendant != pb.NODE

    # -- calls -----------------------------------------------------------------------------------------------------------

    def called(self, connection: ControlStream, call: pb.Call) -> None:
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

    def _do(self, connection: ControlStream, verb: str, arguments: dict[str, Any]) -> Any:
        leader = self._leader
        match verb:
            case "status":
                return self._about()
            case "metrics":
                return leader.metrics()
            case "checkpoints":
                return leader.checkpoints()
            case "checkpoint":
                return self._checkpoint(arguments.get("savepoint"))
            case "savepoint":
                return self._savepoint(str(arguments["path"]))
            case "signal":
                return self._signal(arguments)
            case "cancel":
                return leader.cancel_checkpoint(int(arguments["checkpoint_id"]))
            case "stop":
                leader.stop(drain=bool(arguments.get("drain", False)))
                return self._about()
            case "exited":
                why = Exit(FailureKind(arguments["kind"]), str(arguments["text"])) if "kind" in arguments else None
                leader.succession.driver_exited(connection, int(arguments["gang"]), why)
                return None
            case _:
                raise ProtocolError(f"this leader knows no such verb verb={verb!r}")

    def _about(self) -> dict[str, Any]:
        """Who leads what, for people and their tools."""
        leader, machine = self._leader, self._leader.machine
        head = machine.log.head
        return {
            "job": leader.job,
            "status": leader.status,
            "role": machine.role,
            "term": machine.term,
            "gang": machine.log.gang,
            "epoch": None if head is None else head.epoch,
            "host": machine.host,
            "pid": machine.pid,
            "since_ms": leader.succession.since_ms,
            "has_driver": self._host.attached,
            "problems": [str(problem) for problem in leader.problems],
        }

    def _signal(self, arguments: dict[str, Any]) -> Future[dict[str, Any]]:
        """Send one, or set a parameter to a value that the driver has encoded."""
        signals, answered = self._leader.signals, Future[dict[str, Any]]()
        payload = base64.b64decode(str(arguments.get("payload", "")), validate=True)
        if (name := arguments.get("parameter")) is not None:
            sent = signals.set_encoded(str(name), payload)
        else:
            sent = signals.send(str(arguments["kind"]), payload, arguments.get("mode", "barrier"))

        def done(future: Future[SignalAnswer]) -> None:
            error = future.exception()
            if error is not None:
                answered.set_exception(error)
            else:
                answered.set_result(asdict(future.result()) | {"total_ms": future.result().total_ms})

        sent.add_done_callback(done)
        return answered

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
        url = savepoint_url(path)
        epoch = Epoch(self._checkpoint(shown_url(url)).result())
        write_savepoint(self._leader.log, epoch, url)
        return epoch
