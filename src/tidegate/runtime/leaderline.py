"""A line to whoever leads the job. When the leader is lost, work goes on: this looks for the next one and moves there.

Leaders are found by their heartbeats. A node obeys the highest term that has spoken to it; it looks once a second whether there
is a higher one, and more often while its leader says nothing. One that finds nobody for ``grace_s`` gives up.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol, assert_never

from tidegate.core.failure.election import GoHome, LeaderBeat, Move, Stay, whom_to_follow
from tidegate.errors import WAITED_FOR, NodeUnreachable, ThreadDied
from tidegate.runtime.election import Election
from tidegate.supervise import supervised
from tidegate.wire._gen import control_pb2 as pb

LOOK_S = 1.0
SEARCH_S = 0.2
SUSPICIOUS_S = 1.5
"""A leader that has said nothing for so long may be gone: its heartbeats on the line come every second or sooner."""
GRACE_S = 30.0
FAREWELL_S = 0.3


class Client(Protocol):
    """One end of a control line."""

    @property
    def silent_s(self) -> float:
        """How long nothing has been heard."""

    def send(self, message: pb.NodeMessage) -> None:
        """Never blocks."""

    def close(self, grace_s: float = 2.0) -> None:
        """End it. Blocks for a while."""


OnMessage = Callable[[pb.CoordinatorMessage], None]
OnLost = Callable[[Exception], None]
Connect = Callable[[str, OnMessage, OnLost], Client]


class Listener(Protocol):
    """Whose line it is. Called from network threads: be quick."""

    def control_message(self, message: pb.CoordinatorMessage) -> None:
        """The leader said something."""

    def leader_lost(self, reason: Exception) -> None:
        """Nobody leads, as far as this end can see. Work goes on."""

    def leader_found(self, beat: LeaderBeat) -> None:
        """There is a line to another leader: say hello."""

    def control_lost(self, reason: Exception) -> None:
        """There will be no other leader. Called once, last."""


class LeaderLine:
    """Without an election the first leader is the only one. ``gang`` is asked at every look."""

    def __init__(
        self,
        listener: Listener,
        connect: Connect,
        address: str | None,
        *,
        election: Election | None,
        gang: Callable[[], int],
        grace_s: float = GRACE_S,
        term: int = -1,
        same_again: bool = False,
    ) -> None:
        self._listener = listener
        self._connect = connect
        self._election = election
        self._gang = gang
        self._grace_s = grace_s
        self._same_again = same_again
        """A driver whose line broke may come back to the same leader; a node's leader has given its gang up."""
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._over = False
        self._heard = False
        self._term = term
        self._parent = os.getppid()
        self._since: float | None = None
        self._answered = True
        """False between the hello of a rejoining node and the first word of its new leader."""
        self._generation = 0
        self._lost: deque[Client] = deque()
        self._client: Client | None = None
        if address is not None:
            self._open(address)
        else:
            self._heard, self._since = True, time.monotonic()
        self._follower = None if election is None else supervised("tidegate-follow", self._follow, self._died)
        if self._follower is not None:
            self._follower.start()

    @property
    def client(self) -> Client | None:
        """The line of now."""
        return self._client

    def unheard(self, limit_s: float) -> bool:
        """There is no line for so long; or there is one, and nothing comes on it, not even heartbeats."""
        with self._lock:
            client, since = self._client, self._since
        if since is not None:
            return time.monotonic() - since > limit_s
        return client is not None and client.silent_s > max(limit_s, 2 * SUSPICIOUS_S)

    def send(self, message: pb.NodeMessage) -> None:
        """Say something to the leader. While there is none it is dropped: whoever leads next asks anew."""
        with self._lock:
            client, open_ = self._client, self._answered or message.WhichOneof("body") == "hello"
        if client is not None and open_:
            client.send(message)

    def close(self) -> None:
        """End it. Blocks for a while; nothing is called afterwards."""
        with self._lock:
            self._over = True
            client, self._client = self._client, None
        self._wake.set()
        self._close_lost()
        if client is not None:
            client.close()
        if self._follower is not None and self._follower is not threading.current_thread():
            self._follower.join(2 * LOOK_S)

    # -- one client --------------------------------------------------------------------------------------------------

    def _open(self, address: str) -> bool:
        """Open a line there; False when it is lost already. The callbacks of earlier lines do nothing from now on."""
        with self._lock:
            self._generation += 1
            mine = self._generation

        def said(message: pb.CoordinatorMessage) -> None:
            with self._lock:
                if self._over or mine != self._generation:
                    return
                self._heard = self._answered = True
                self._since = None
                self._term = max(self._term, message.term)
            self._listener.control_message(message)

        def lost(reason: Exception) -> None:
            with self._lock:
                if self._over or mine != self._generation:
                    return
                self._generation += 1
                self._leave()
            self._left(reason)

        client = self._connect(address, said, lost)
        with self._lock:
            current = mine == self._generation and not self._over
            if current:
                self._client = client
        if not current:
            client.close(0.0)
        return current

    def _leave(self) -> None:
        """The line of now is over. It is closed by another thread than its own; with the lock."""
        if self._client is not None:
            self._lost.append(self._client)
        self._client = None

    def _close_lost(self) -> None:
        while self._lost:
            self._lost.popleft().close(0.0)

    def _left(self, reason: Exception) -> None:
        """A line that broke. Final where nobody else can come, or nobody has ever answered.

        One that has another key is a stranger: it has the port that a leader had.
        """
        if self._election is None or not self._heard or isinstance(reason, ThreadDied):
            self._end(reason)
            return
        with self._lock:
            first = self._since is None
            self._since = self._since or time.monotonic()
        if first:
            self._listener.leader_lost(reason)
        self._wake.set()

    def _end(self, reason: Exception) -> None:
        with self._lock:
            if self._over:
                return
            self._over = True
        self._wake.set()
        self._listener.control_lost(reason)

    # -- the next leader: a thread of this line's own --------------------------------------------------------------------

    def _follow(self) -> None:
        while not self._over:
            self._wake.wait(self._pause_s())
            self._wake.clear()
            self._close_lost()
            if not self._over:
                self._look()

    def _pause_s(self) -> float:
        with self._lock:
            client = self._client
        return SEARCH_S if client is None or client.silent_s > SUSPICIOUS_S else LOOK_S

    def _look(self) -> None:
        if os.getppid() != self._parent:
            self._end(NodeUnreachable("the process that started this node is gone"))
            return
        assert self._election is not None
        try:
            beat = self._election.newest()
        except WAITED_FOR:
            beat = None  # nobody can tell now
        whom = self._whom(beat)
        match whom:
            case Move(newest):
                self._move(newest)
            case GoHome(reason):
                self._end(NodeUnreachable(reason))
            case Stay():
                pass
            case _:
                assert_never(whom)
        self._check_grace()

    def _whom(self, beat: LeaderBeat | None) -> Stay | Move | GoHome:
        with self._lock:
            term = self._term - (self._same_again and self._client is None)
        return whom_to_follow(beat, term, self._gang())

    def _move(self, beat: LeaderBeat) -> None:
        with self._lock:
            if self._over or (self._client is not None and not self._answered):
                return  # it is on the way already
            old, self._client, self._answered = self._client, None, False
            self._generation += 1
        if old is not None:
            # Its leader may not know yet, and would stop the others of a gang that has lost a node.
            old.send(pb.NodeMessage(term=beat.term, stopped=pb.Stopped()))
            if self._since is None:
                self._since = time.monotonic()
            self._listener.leader_lost(NodeUnreachable(f"another leader has taken over term={beat.term}"))
        if self._open(beat.address):
            self._listener.leader_found(beat)
        if old is not None:
            old.close(FAREWELL_S)

    def _check_grace(self) -> None:
        with self._lock:
            since = self._since
        if since is not None and time.monotonic() - since > self._grace_s:
            self._end(NodeUnreachable(f"no leader was found within {self._grace_s:.0f} s"))

    def _died(self, death: ThreadDied) -> None:
        self._end(death)
