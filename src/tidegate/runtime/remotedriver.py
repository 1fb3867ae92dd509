"""The driver of a job that is led from elsewhere, as its leader sees it: what it orders there, and what comes back.

The driver performs one order at a time, confirms it, and refuses lower terms. Without a driver nothing is started or published;
the data goes on, and what waits is done when one comes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from tidegate.core.checkpoint.manifest import CommittableEntry
from tidegate.core.failure.restart import FailureKind
from tidegate.core.log.codec import to_plain
from tidegate.errors import RetryableError
from tidegate.runtime.calls import Calls
from tidegate.runtime.gang import ControlStream, Exit
from tidegate.wire._gen import control_pb2 as pb

ORDER_LIMIT_S = 120.0
"""Publishing is slow where sinks are; a driver that says nothing at all is noticed by its line."""


class RemoteDriver:
    """Gang host and sinks in one. ``on_change`` is called when the driver comes or goes. Any thread."""

    def __init__(self, hiding: dict[str, bool], on_change: Callable[[], None] = lambda: None) -> None:
        self.hiding = hiding
        self.clear_wanted = False
        self.on_change = on_change
        self.term = 0
        self._lock = threading.Lock()
        self._connection: ControlStream | None = None
        self._calls: Calls | None = None
        self._gang: int | None = None
        self._on_exit: Callable[[Exit | None], None] | None = None
        self._sweep: dict[str, Any] = {}
        self._ended = threading.Condition(self._lock)

    # -- the line ----------------------------------------------------------------------------------------------------

    @property
    def attached(self) -> bool:
        """The driver is there."""
        return self._connection is not None

    def attach(self, connection: ControlStream) -> None:
        """A driver says hello. A second one takes the place of the first."""
        calls = Calls(lambda call: connection.send(pb.CoordinatorMessage(term=self.term, call=call)))
        with self._lock:
            self._connection, self._calls = connection, calls
        connection.send(pb.CoordinatorMessage(term=self.term, adopted=pb.Adopted(epoch=-1)))  # from now on it may ask, too
        self.on_change()

    def detach(self, connection: ControlStream, error: Exception | None) -> None:
        """Its line is gone. Its gang may go on, and it may come back."""
        with self._lock:
            if self._connection is not connection:
                return
            calls, self._connection, self._calls = self._calls, None, None
        if calls is not None:
            calls.lost(error or RetryableError("the driver left"))
        self.on_change()

    def close(self) -> None:
        """Its leader leads no more: whoever waits for an answer of the driver is told at once."""
        if (connection := self._connection) is not None:
            self.on_change = lambda: None
            self.detach(connection, RetryableError("this leader leads no more"))

    def is_mine(self, connection: ControlStream) -> bool:
        """This line is the driver's."""
        return self._connection is connection

    def replied(self, connection: ControlStream, reply: pb.Reply) -> None:
        """The driver answers."""
        calls = self._calls if self.is_mine(connection) else None
        if calls is not None:
            calls.replied(reply)

    def exited(self, gang: int, why: Exit | None) -> None:
        """The driver says that a gang's processes have ended."""
        with self._lock:
            if gang != self._gang:
                return
            on_exit, self._on_exit, self._gang = self._on_exit, None, None
            self._ended.notify_all()
        if on_exit is not None:
            on_exit(why)

    def given_up(self, reason: str) -> None:
        """The driver will not come back: whatever it ran is gone."""
        if (gang := self._gang) is not None:
            self.exited(gang, Exit(FailureKind.LOST, reason))

    # -- gangs ---------------------------------------------------------------------------------------------------------

    def start(self, gang: int, restore_url: str | None, on_exit: Callable[[Exit | None], None]) -> None:
        """Order a gang, and that what earlier ones left is swept first."""
        self._expect(gang, on_exit)
        sweep, self._sweep = self._sweep, {}
        self._order(gang, self._ask("start", gang=gang, restore_url=restore_url, **sweep))

    def watch(self, gang: int, on_exit: Callable[[Exit | None], None]) -> None:
        """Order to be told of the end of a gang that runs."""
        self._expect(gang, on_exit)
        self._order(gang, self._ask("watch", gang=gang))

    def _expect(self, gang: int, on_exit: Callable[[Exit | None], None]) -> None:
        with self._lock:
            self._gang, self._on_exit = gang, on_exit

    def _order(self, gang: int, future: Future[Any]) -> None:
        """One that the driver refuses, or that is lost with its line, has no gang. A lost line is told of by ``on_change``."""

        def done(answered: Future[Any]) -> None:
            error = answered.exception()
            if error is not None and not isinstance(error, RetryableError):
                self.exited(gang, Exit(FailureKind.SETUP, f"the driver can't run it: {error}"))

        future.add_done_callback(done)

    def running(self) -> int | None:
        """Not known from here."""
        return None

    def cancel(self) -> None:
        """Order the end by force."""
        self._ask("cancel")

    def join(self, timeout_s: float) -> bool:
        """Wait until the driver says that the gang has ended."""
        with self._lock:
            return self._ended.wait_for(lambda: self._gang is None, timeout_s if self._connection is not None else 0)

    # -- sinks ---------------------------------------------------------------------------------------------------------

    def publish(self, committables: Iterable[CommittableEntry]) -> None:
        self._do("publish", committables=_plain(committables))

    def hide(self, committables: Iterable[CommittableEntry]) -> None:
        self._do("hide", committables=_plain(committables))

    def hide_unnamed(self, gang: int, checkpoint_id: int, keep: Iterable[CommittableEntry]) -> None:
        self._do("hide_unnamed", gang=gang, checkpoint_id=checkpoint_id, committables=_plain(keep))

    def clear(self) -> None:
        """Never asked for: a coordinator goes on with what there is."""

    def sweep(self, gang: int, keep: Iterable[CommittableEntry]) -> None:
        """Done by the driver when it starts the gang."""
        self._sweep = {"sweep_gang": gang, "committables": _plain(keep)}

    def release(self) -> None:
        """The driver keeps its sinks."""

    def ended(self, status: str, error: str | None) -> None:
        """Tell the driver that the job is over, and wait a while until it has heard."""
        if self.attached:
            try:
                self._ask("ended", status=status, error=error).result(5.0)
            except Exception:  # it reads the last heartbeat then
                return

    def _do(self, verb: str, **arguments: Any) -> None:
        try:
            self._ask(verb, **arguments).result(ORDER_LIMIT_S)
        except TimeoutError as error:
            raise RetryableError(f"the driver has not answered for {ORDER_LIMIT_S:.0f} s verb={verb}") from error

    def _ask(self, verb: str, **arguments: Any) -> Future[Any]:
        calls = self._calls
        if calls is None:
            future: Future[Any] = Future()
            future.set_exception(RetryableError("the job's driver is not there: nothing can be started or published without it"))
            return future
        return calls.call(verb, **arguments)


def _plain(committables: Iterable[CommittableEntry]) -> list[object]:
    return [to_plain(entry) for entry in committables]
