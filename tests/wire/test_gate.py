"""Who may wait at a port: silent connections cost no thread, leave first, and never keep a node out."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import secrets
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import grpc
import pytest

from tidegate.core.barrier.messages import End
from tidegate.errors import InvalidUseError, RetryableError, ThreadDied
from tidegate.runtime.start import JobOptions, control_settings
from tidegate.wire._gen.control_pb2 import Hello, NodeMessage
from tidegate.wire.control import METHOD, SERVICE, ControlClient, ControlServer
from tidegate.wire.gate import Gate, LogBudget, Newcomer
from tidegate.wire.line import ControlSettings
from tidegate.wire.prove import NodeProof
from tidegate.wire.relay import ControlPort
from tidegate.wire.tcp import TcpSettings, TcpTransport
from tidegate.wire.transport import ChannelId

SECRET = b"0123456789abcdef"
WAIT_S = 30.0

pytestmark = pytest.mark.usefixtures("no_threads_left")


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def exactly(sock: socket.socket, count: int) -> bytes:
    """So many bytes, or fewer at the end of the stream."""
    data = bytearray()
    while len(data) < count and (more := sock.recv(count - len(data))):
        data += more
    return bytes(data)


class Port:
    """A gate whose newcomers are kept by the test."""

    def __init__(self, waiting_max: int = 3, patience_s: float = 60.0, bind: str = "127.0.0.1") -> None:
        self.spoke: list[Newcomer] = []
        self.gate = Gate(bind, "tests", self.spoke.append, waiting_max=waiting_max, patience_s=patience_s)
        self.thread = threading.Thread(target=self.gate.run)
        self.thread.start()
        self.dialled: list[socket.socket] = []

    def dial(self, words: bytes = b"", source: str = "127.0.0.1") -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.gate.port), WAIT_S, (source, 0))
        self.dialled.append(sock)
        count = len(self.spoke)
        if words:
            sock.sendall(words)
            until(lambda: len(self.spoke) > count)
        return sock

    def close(self) -> None:
        self.gate.close()
        self.thread.join(WAIT_S)
        for newcomer in self.spoke:
            self.gate.leave(newcomer)
            newcomer.sock.close()
        for sock in self.dialled:
            sock.close()


@pytest.fixture
def port() -> Iterator[Port]:
    port = Port()
    yield port
    port.close()


def is_open(sock: socket.socket) -> bool:
    sock.settimeout(0.2)
    try:
        return sock.recv(1) != b""
    except TimeoutError:
        return True
    except ConnectionError:
        return False


def test_only_who_speaks_is_served(port: Port) -> None:
    port.dial()
    talker = port.dial(b"hi")
    assert [newcomer.peer for newcomer in port.spoke] == [f"127.0.0.1:{talker.getsockname()[1]}"]
    assert port.spoke[0].sock.recv(10) == b"hi"


def test_who_hangs_up_without_a_word_is_never_served(port: Port) -> None:
    port.dial().close()
    port.dial(b"hi")
    assert len(port.spoke) == 1


def test_the_oldest_silent_one_leaves_first(port: Port) -> None:
    silent = [port.dial() for _ in range(3)]
    until(lambda: port.gate._silent.__len__() == 3)
    port.dial(b"hi")
    assert [is_open(sock) for sock in silent] == [False, True, True]


def test_who_has_spoken_leaves_only_when_nobody_is_silent(port: Port) -> None:
    talkers = [port.dial(b"hi") for _ in range(2)]
    silent = port.dial()
    port.dial(b"hi")
    assert not is_open(silent) and all(map(is_open, talkers))
    port.dial(b"hi")
    assert [is_open(sock) for sock in talkers] == [False, True]


def test_a_host_pushes_out_only_its_own(port: Port) -> None:
    node = port.dial(source="127.0.0.2")
    crowd = [port.dial(source="127.0.0.3") for _ in range(20)]
    until(lambda: not is_open(crowd[17]))
    assert is_open(node)


def test_who_has_proved_itself_is_never_pushed_out(port: Port) -> None:
    node = port.dial(b"hi")
    port.gate.leave(port.spoke[0])
    for _ in range(4):
        port.dial(b"hi")
    assert is_open(node)


@pytest.mark.parametrize("words", [b"", b"hi"])
def test_a_newcomer_has_limited_time(words: bytes) -> None:
    port = Port(patience_s=0.2)
    sock = port.dial(words)
    sock.settimeout(WAIT_S)
    assert sock.recv(1) == b""
    port.close()


def test_a_gate_goes_on_when_there_is_no_thread_for_a_newcomer(port: Port, caplog: pytest.LogCaptureFixture) -> None:
    def no_thread(newcomer: Newcomer) -> None:
        raise RuntimeError("can't start new thread")

    port.gate._serve = no_thread
    unlucky = port.dial()
    unlucky.sendall(b"hi")
    assert not is_open(unlucky)
    port.gate._serve = port.spoke.append
    port.dial(b"hi")
    assert "can't start new thread" in caplog.text


def test_a_gate_that_cannot_listen_says_where() -> None:
    with pytest.raises(InvalidUseError, match=r"cannot listen for tests: .* bind=203\.0\.113\.9"):
        Port(bind="203.0.113.9")


def test_many_that_were_turned_away_are_one_line_in_the_log(port: Port, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tidegate.wire"):
        for _ in range(100):
            port.dial()
        port.dial(b"hi")
    assert caplog.text.count("proved nothing") == 1


def test_warnings_of_strangers_have_a_budget(caplog: pytest.LogCaptureFixture) -> None:
    budget = LogBudget(logging.getLogger("tidegate.wire"), lines=3)
    for number in range(10):
        budget.warning("refused %d", number)
    assert [record.getMessage() for record in caplog.records] == [
        "refused 0", "refused 1", "refused 2", "more of these are not logged for 10 s",
    ]  # fmt: skip


# -- under siege ---------------------------------------------------------------------------------------------------

ATTACKER = """
import socket, sys, time
words = bytes.fromhex(sys.argv[2])
held = []
print("ready", flush=True)
while True:
    for _ in range(40):
        try:
            sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 0.5, (sys.argv[3], 0))
            sock.setblocking(False)
            if words:
                sock.send(words)
            held.append(sock)
        except OSError:
            break
    for sock in list(held):
        try:
            if sock.recv(4096) == b"":
                raise OSError
        except BlockingIOError:
            pass
        except OSError:
            sock.close()
            held.remove(sock)
    for sock in held[:-600]:
        sock.close()
    del held[:-600]
    time.sleep(0.005)
"""


@pytest.fixture
def attack() -> Iterator[Callable[..., None]]:
    """Starts a process that opens connections as fast as it can, from one address, and holds up to 600 of them."""
    started: list[subprocess.Popen[bytes]] = []

    def start(port: int, words: bytes, source: str = "127.0.0.1") -> None:
        command = [sys.executable, "-c", ATTACKER, str(port), words.hex(), source]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("words", [b"", b"x"], ids=["silent", "speaking"])
def test_nodes_get_their_data_channels_while_an_attacker_holds_hundreds(attack, mailboxes, batch, words: bytes) -> None:
    sent, got = mailboxes
    receiver = TcpTransport(got, secret=SECRET, gang=1, settings=TcpSettings(max_newcomers=64))
    sender = TcpTransport(sent, secret=SECRET, gang=1)
    try:
        # Who speaks as fast as it can from a node's own address may still delay it.
        attack(int(receiver.address.rpartition(":")[2]), words, "127.0.0.3" if words else "127.0.0.1")
        files, threads = open_files(), threading.active_count()
        for number in range(10):
            channel = ChannelId(1, 0, number)
            receiver.expect(channel, batch.schema)
            sender.connect(channel, receiver.address).send(End())
        got.wait(lambda: len(got.closed_) == 10)
        assert [error for _, error in got.closed_] == [None] * 10
        assert open_files() < files + 64 + 60
        assert words or threading.active_count() < threads + 40
    finally:
        sender.close()
        receiver.close()


class Joined:
    """Counts nodes."""

    def __init__(self) -> None:
        self.nodes: set[int] = set()

    def joined(self, connection) -> None:
        self.nodes.add(connection.hello.node)

    def message(self, connection, message) -> None: ...

    def left(self, connection, error) -> None: ...

    def broken(self, death) -> None: ...


PATIENT = ControlSettings(silence_s=60.0, handshake_s=60.0)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"


@pytest.mark.parametrize("words", [b"", PREFACE], ids=["silent", "speaking"])
def test_nodes_join_while_an_attacker_holds_hundreds_of_control_connections(attack, words: bytes) -> None:
    joined, lost = Joined(), []
    server = ControlServer(joined, SECRET, settings=replace(PATIENT, max_newcomers=64))
    clients = []
    try:
        attack(int(server.address.rpartition(":")[2]), words, "127.0.0.3" if words else "127.0.0.1")
        files = open_files()
        for number in range(10):
            client = ControlClient(server.address, SECRET, lambda message: None, lost.append, settings=PATIENT)
            clients.append(client)
            client.send(NodeMessage(hello=Hello(node=number, gang=1)))
        until(lambda: len(joined.nodes) == 10 or bool(lost))
        assert (joined.nodes, lost) == (set(range(10)), [])
        assert open_files() < files + 3 * 64 + 10 * 20
    finally:
        for client in clients:
            client.close()
        server.close()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def control_port() -> Iterator[tuple[ControlPort, socket.socket]]:
    """The port of a control plane, with the test in the place of grpc."""
    port = ControlPort("127.0.0.1", waiting_max=8, patience_s=60.0)
    grpc_side = socket.socket(socket.AF_UNIX)
    grpc_side.bind(port.target)
    grpc_side.listen()
    grpc_side.settimeout(WAIT_S)
    deaths: list[ThreadDied] = []
    port.start(deaths.append)
    yield port, grpc_side
    assert deaths == []
    grpc_side.close()
    port.close(WAIT_S)


def test_a_stranger_may_send_little_before_it_proves_itself(control_port) -> None:
    port, grpc_side = control_port
    with socket.create_connection(("127.0.0.1", port.port), WAIT_S) as stranger:
        stranger.sendall(bytes(60_000))
        inner = grpc_side.accept()[0]
        assert len(exactly(inner, 60_000)) == 60_000
        stranger.sendall(bytes(10_000))
        assert stranger.recv(1) == b""
        assert exactly(inner, 10_000) == b""
        inner.close()


def test_a_node_that_has_proved_itself_may_send_all_it_wants_in_both_directions(control_port) -> None:
    port, grpc_side = control_port
    much = bytes(range(256)) * 20_000
    with socket.create_connection(("127.0.0.1", port.port), WAIT_S) as node:
        node.sendall(b"hi")
        inner, peer = grpc_side.accept()
        inner.settimeout(WAIT_S)
        address = f"127.0.0.1:{node.getsockname()[1]}"
        until(lambda: port.address_of(f"unix:{peer}") == address)
        assert port.admit(f"unix:{peer}") == address
        assert inner.recv(2) == b"hi"
        for sender, receiver in ((node, inner), (inner, node)):
            thread = threading.Thread(target=sender.sendall, args=(much,))
            thread.start()
            assert exactly(receiver, len(much)) == much
            thread.join()
        inner.sendall(much)
        inner.close()
        assert exactly(node, len(much)) == much
        assert node.recv(1) == b""


def test_only_this_user_can_reach_grpc_past_the_gate(control_port) -> None:
    directory = os.path.dirname(control_port[0].target)
    assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700


@pytest.mark.parametrize("who", ["gate", "relay"])
def test_a_control_port_whose_thread_dies_says_so(who: str) -> None:
    """No node could join any more."""
    deaths: list[ThreadDied] = []
    handler = Joined()
    handler.broken = deaths.append  # type: ignore[method-assign, assignment]
    server = ControlServer(handler, SECRET)
    try:
        if who == "gate":
            server._port._gate._drop_late = None  # type: ignore[assignment]
        else:
            server._port._relay._next_look = None  # type: ignore[assignment]
            server._port._relay._rouse()
        with socket.create_connection(("127.0.0.1", int(server.address.rpartition(":")[2])), WAIT_S):
            until(lambda: bool(deaths))
        assert f"thread=tidegate-control-{who}" in str(deaths[0])
    finally:
        server.close()


def test_the_directory_of_a_control_port_is_removed() -> None:
    server = ControlServer(Joined(), SECRET)
    directory = os.path.dirname(server._port.target)
    assert os.path.isdir(directory)
    server.close()
    assert not os.path.exists(directory)


async def join(address: str, number: int, done: asyncio.Event) -> None:
    """A node that costs no thread: what ``ControlClient`` says, in one event loop for all."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        line = channel.stream_stream(f"/{SERVICE}/{METHOD}")()
        node = NodeProof(SECRET, secrets.token_bytes(32))
        await line.write(node.hello)
        second, session = node.answered(await line.read())
        await line.write(second)
        hello = NodeMessage(hello=Hello(node=number, gang=1))
        await line.write(session.outgoing.sealed(hello.SerializeToString()))
        await done.wait()
        line.cancel()


async def join_all(address: str, count: int, joined: Joined) -> None:
    done = asyncio.Event()
    lines = [asyncio.ensure_future(join(address, number, done)) for number in range(count)]
    deadline = time.monotonic() + 120
    while len(joined.nodes) < count and time.monotonic() < deadline and not any(line.done() for line in lines):
        await asyncio.sleep(0.05)
    done.set()
    for error in await asyncio.gather(*lines, return_exceptions=True):
        assert error is None, error


@pytest.mark.slow
def test_a_thousand_nodes_join() -> None:
    joined = Joined()
    settings = control_settings(JobOptions(parallelism=1000))
    server = ControlServer(joined, SECRET, settings=settings)
    try:
        asyncio.run(join_all(server.address, 1000, joined))
        assert joined.nodes == set(range(1000))
    finally:
        server.close()


def test_a_node_too_many_is_refused_by_name() -> None:
    joined, lost = Joined(), []
    server = ControlServer(joined, SECRET, settings=ControlSettings(max_nodes=1))
    clients = []
    try:
        for number in range(2):
            clients.append(ControlClient(server.address, SECRET, lambda message: None, lost.append))
            clients[-1].send(NodeMessage(hello=Hello(node=number, gang=1)))
            until(lambda number=number: len(joined.nodes) + len(lost) == number + 1)
        assert isinstance(lost[0], RetryableError)
        assert "the coordinator refused this node: it takes no more than 1 nodes at once" in str(lost[0])
    finally:
        for client in clients:
            client.close()
        server.close()


def test_more_nodes_than_the_driver_may_open_files_for_are_refused_before_anything_starts() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        pytest.skip("this process may open any number of files")
    with pytest.raises(InvalidUseError, match=rf"may have {hard}: raise the limit .* or lower parallelism parallelism={hard}"):
        control_settings(JobOptions(parallelism=hard))
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)


def test_the_limit_of_open_files_is_raised_as_far_as_the_nodes_need() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
    try:
        assert control_settings(JobOptions(parallelism=200)).max_nodes >= 400
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 1456
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
