"""The control plane over real gRPC on loopback: who gets in, what arrives in which order, and how silence is noticed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from tidegate.errors import (
    ChannelFull,
    CorruptDataError,
    FencedError,
    InvalidUseError,
    NodeStalled,
    NodeUnreachable,
    ProtocolError,
    RetryableError,
    ThreadDied,
)
from tidegate.runtime.activity import told
from tidegate.wire._gen.control_pb2 import (
    Committed,
    CoordinatorMessage,
    Drained,
    Failed,
    Hello,
    NodeMessage,
    Prepared,
    Stop,
    Stopped,
    Welcome,
)
from tidegate.wire.control import (
    METHOD,
    SERVICE,
    ControlClient,
    ControlServer,
    NodeConnection,
)
from tidegate.wire.line import ControlSettings
from tidegate.wire.prove import NodeProof

SECRET = b"0123456789abcdef"
QUICK = ControlSettings(heartbeat_s=0.02, silence_s=5.0)
HELLO = NodeMessage(hello=Hello(node=3, gang=9, address="127.0.0.1:5", pid=1, host="here"))

pytestmark = pytest.mark.usefixtures("no_threads_left")


@dataclass
class Log:
    """Records what a server's handler or a client's callbacks are told."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    entries: list[tuple[str, Any]] = field(default_factory=list)
    connections: list[NodeConnection] = field(default_factory=list)

    def joined(self, connection: NodeConnection) -> None:
        self.connections.append(connection)
        self.add("joined", connection.hello.node)

    def message(self, connection: NodeConnection, message: NodeMessage) -> None:
        self.add("message", message)

    def left(self, connection: NodeConnection, error: Exception | None) -> None:
        self.add("left", error)

    def broken(self, death: ThreadDied) -> None:
        self.add("broken", death)

    def on_message(self, message: CoordinatorMessage) -> None:
        self.add("message", message)

    def on_lost(self, error: Exception) -> None:
        self.add("lost", error)

    def add(self, kind: str, what: object) -> None:
        with self.changed:
            self.entries.append((kind, what))
            self.changed.notify_all()

    def wait(self, kind: str, count: int = 1) -> list[Any]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.of(kind)) >= count, 20.0), self.entries
        return self.of(kind)

    def of(self, kind: str) -> list[Any]:
        return [what for name, what in self.entries if name == kind]


@pytest.fixture
def coordinator() -> Log:
    return Log()


@pytest.fixture
def node() -> Log:
    return Log()


@pytest.fixture
def server(coordinator: Log) -> Iterator[ControlServer]:
    server = ControlServer(coordinator, SECRET, settings=QUICK)
    yield server
    server.close()


@pytest.fixture
def connect(server: ControlServer) -> Iterator[Callable[..., ControlClient]]:
    clients: list[ControlClient] = []

    def make(log: Log, secret: bytes = SECRET, settings: ControlSettings = QUICK) -> ControlClient:
        clients.append(ControlClient(server.address, secret, log.on_message, log.on_lost, settings=settings))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def test_a_node_joins_talks_and_leaves_in_order(connect, coordinator: Log, node: Log) -> None:
    client = connect(node)
    client.send(HELLO)
    messages = [NodeMessage(prepared=Prepared(json=b"{}")), NodeMessage(drained=Drained(gang=9))]
    for message in messages:
        client.send(message)
    client.send(NodeMessage(stopped=Stopped(gang=9)))
    client.close()
    coordinator.wait("left")
    assert coordinator.entries == [
        ("joined", 3),
        ("message", messages[0]),
        ("message", messages[1]),
        ("message", NodeMessage(stopped=Stopped(gang=9))),
        ("left", None),
    ]
    assert coordinator.connections[0].hello == HELLO.hello
    assert node.of("lost") == []


def test_the_coordinator_talks_to_each_node(connect, coordinator: Log) -> None:
    nodes = [Log(), Log()]
    for number, log in enumerate(nodes):
        connect(log).send(NodeMessage(hello=Hello(node=number, gang=1)))
    coordinator.wait("joined", 2)
    for connection in coordinator.connections:
        connection.send(CoordinatorMessage(welcome=Welcome(gang=connection.hello.node)))
    assert [log.wait("message")[0].welcome.gang for log in nodes] == [0, 1]


def test_heartbeats_keep_an_idle_stream_alive_and_are_not_reported(coordinator: Log, node: Log) -> None:
    settings = ControlSettings(heartbeat_s=0.02, silence_s=0.3)
    server = ControlServer(coordinator, SECRET, settings=settings)
    client = ControlClient(server.address, SECRET, node.on_message, node.on_lost, settings=settings)
    try:
        client.send(HELLO)
        coordinator.wait("joined")
        time.sleep(1.0)  # more than three times the silence that would end it
        assert coordinator.of("left") == [] and node.entries == []
    finally:
        client.close()
        server.close()


def test_a_wrong_secret_is_refused(connect, coordinator: Log, node: Log) -> None:
    connect(node, secret=b"another secret of ours").send(HELLO)
    (error,) = node.wait("lost")
    assert isinstance(error, RetryableError) and "does not know the job's secret" in str(error)
    assert "another secret" not in str(error) and SECRET.decode() not in str(error)
    assert coordinator.entries == []


def test_a_node_that_does_not_say_hello_first_is_dropped(connect, coordinator: Log, node: Log) -> None:
    connect(node).send(NodeMessage(drained=Drained(gang=1)))
    assert isinstance(node.wait("lost")[0], RetryableError)
    assert coordinator.entries == []


def test_a_second_hello_is_a_protocol_error(connect, coordinator: Log, node: Log) -> None:
    client = connect(node)
    client.send(HELLO)
    client.send(HELLO)
    assert isinstance(coordinator.wait("left")[0], ProtocolError)
    assert isinstance(node.wait("lost")[0], RetryableError)


def test_a_node_whose_message_cannot_be_read_leaves_with_that_error(
    connect, coordinator: Log, node: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(connection: NodeConnection, message: NodeMessage) -> None:
        raise CorruptDataError("not JSON")

    monkeypatch.setattr(coordinator, "message", unreadable)
    client = connect(node)
    client.send(HELLO)
    client.send(NodeMessage(prepared=Prepared(json=b"{")))
    assert isinstance(coordinator.wait("left")[0], CorruptDataError)
    node.wait("lost")


def test_a_silent_node_is_given_up(coordinator: Log, node: Log) -> None:
    server = ControlServer(coordinator, SECRET, settings=ControlSettings(heartbeat_s=0.02, silence_s=0.2))
    quiet = ControlSettings(heartbeat_s=30.0, silence_s=60.0)
    client = ControlClient(server.address, SECRET, node.on_message, node.on_lost, settings=quiet)
    try:
        client.send(HELLO)
        assert isinstance(coordinator.wait("left")[0], NodeUnreachable)
        assert isinstance(node.wait("lost")[0], RetryableError)
    finally:
        client.close()
        server.close()


def test_a_silent_coordinator_is_given_up(coordinator: Log, node: Log) -> None:
    server = ControlServer(coordinator, SECRET, settings=ControlSettings(heartbeat_s=30.0, silence_s=60.0))
    quick = ControlSettings(heartbeat_s=0.02, silence_s=0.2)
    client = ControlClient(server.address, SECRET, node.on_message, node.on_lost, settings=quick)
    try:
        client.send(HELLO)
        assert isinstance(node.wait("lost")[0], NodeUnreachable)
    finally:
        client.close()
        server.close()


def test_an_address_without_a_coordinator_is_unreachable_at_once(node: Log) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        client = ControlClient(address, SECRET, node.on_message, node.on_lost, settings=QUICK)
        try:
            assert isinstance(node.wait("lost")[0], NodeUnreachable)
        finally:
            client.close()


def test_a_killed_node_leaves_with_an_error(server: ControlServer, coordinator: Log) -> None:
    code = (
        "import sys, time\n"
        "from tidegate.wire.control import ControlClient\n"
        "from tidegate.wire._gen.control_pb2 import Hello, NodeMessage\n"
        f"client = ControlClient(sys.argv[1], {SECRET!r}, print, print)\n"
        "client.send(NodeMessage(hello=Hello(node=1, gang=1)))\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, server.address])
    try:
        coordinator.wait("joined")
    finally:
        process.kill()
        process.wait()
    assert isinstance(coordinator.wait("left")[0], RetryableError)


def test_a_node_that_leaves_without_a_word_leaves_with_an_error(connect, coordinator: Log, node: Log) -> None:
    client = connect(node)
    client.send(HELLO)
    client.close()
    assert isinstance(coordinator.wait("left")[0], RetryableError)


def test_a_stream_that_the_coordinator_ends_is_over_in_order(connect, coordinator: Log, node: Log) -> None:
    connect(node).send(HELLO)
    coordinator.wait("joined")
    coordinator.connections[0].send(CoordinatorMessage(stop=Stop(reason="enough")))
    coordinator.connections[0].finish()
    assert isinstance(node.wait("lost")[0], RetryableError)
    assert node.of("message")[0].stop.reason == "enough"
    assert coordinator.wait("left") == [None]


def test_what_is_queued_is_sent_before_the_server_closes(connect, server, coordinator: Log, node: Log) -> None:
    connect(node).send(HELLO)
    coordinator.wait("joined")
    for epoch in range(20):
        coordinator.connections[0].send(CoordinatorMessage(committed=Committed(epoch=epoch)))
    coordinator.connections[0].send(CoordinatorMessage(stop=Stop(reason="done")))
    server.close()
    server.close()
    messages = node.wait("message", 21)
    assert [m.committed.epoch for m in messages[:20]] == list(range(20)) and messages[20].stop.reason == "done"
    assert isinstance(node.wait("lost")[0], RetryableError)
    assert coordinator.of("left") == []


def test_a_full_outbox_gives_the_peer_up(coordinator: Log, node: Log) -> None:
    tiny = ControlSettings(heartbeat_s=0.02, silence_s=5.0, outbox_max=2)
    server = ControlServer(coordinator, SECRET, settings=tiny)
    stalled = threading.Event()

    def stall(message: CoordinatorMessage) -> None:
        stalled.wait(20.0)

    client = ControlClient(server.address, SECRET, stall, node.on_lost, settings=QUICK)
    try:
        client.send(HELLO)
        coordinator.wait("joined")
        large = CoordinatorMessage(welcome=Welcome(gang=1, restore=bytes(4 << 20)))
        for _ in range(50):  # far more than the windows of the network hold
            coordinator.connections[0].send(large)
        assert isinstance(coordinator.wait("left")[0], ChannelFull)
    finally:
        stalled.set()
        client.close()
        server.close()


def test_a_message_over_the_limit_is_refused_before_it_is_queued(connect, coordinator: Log, node: Log) -> None:
    client = connect(node, settings=ControlSettings(max_message_bytes=1000))
    with pytest.raises(InvalidUseError):
        client.send(NodeMessage(prepared=Prepared(json=bytes(1000))))
    client.send(HELLO)
    coordinator.wait("joined")


def test_large_messages_within_the_limit_arrive(connect, coordinator: Log, node: Log) -> None:
    client = connect(node)
    client.send(HELLO)
    client.send(NodeMessage(prepared=Prepared(json=bytes(20 << 20))))
    assert len(coordinator.wait("message")[0].prepared.json) == 20 << 20


@pytest.mark.parametrize(
    "call",
    [
        lambda: ControlSettings(heartbeat_s=1.0, silence_s=1.0),
        lambda: ControlSettings(heartbeat_s=0.0),
        lambda: ControlSettings(outbox_max=0),
        lambda: ControlServer(Log(), b"short"),
        lambda: ControlServer(Log(), SECRET, "256.0.0.1"),
        lambda: ControlClient("127.0.0.1:1", b"short", print, print),
    ],
)
def test_senseless_settings_are_refused(call) -> None:
    with pytest.raises(InvalidUseError):
        call()


def test_the_data_plane_does_not_load_grpc() -> None:
    code = (
        "import sys, threading, tidegate.wire.tcp, tidegate.store.open\n"
        "assert 'grpc' not in sys.modules and threading.active_count() == 1\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_complete_life_prints_nothing() -> None:
    code = (
        "from tidegate.wire.control import ControlClient, ControlServer\n"
        "from tidegate.wire._gen.control_pb2 import Hello, NodeMessage\n"
        "import threading, time\n"
        "seen = threading.Event()\n"
        "class Handler:\n"
        "    def joined(self, c): seen.set()\n"
        "    def message(self, c, m): pass\n"
        "    def left(self, c, e): pass\n"
        f"server = ControlServer(Handler(), {SECRET!r})\n"
        f"client = ControlClient(server.address, {SECRET!r}, print, print)\n"
        "client.send(NodeMessage(hello=Hello(node=1, gang=1)))\n"
        "assert seen.wait(20)\n"
        "client.close(); server.close()\n"
        "deadline = time.monotonic() + 10\n"  # grpc's own thread that ends calls may live a moment longer than the wait for it
        "while threading.active_count() > 1 and time.monotonic() < deadline: time.sleep(0.01)\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, timeout=60, env=dict(os.environ))
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


# -- a process that stands still -----------------------------------------------------------------------------------------

NODE = """
import ctypes, sys, time
from tidegate.runtime.activity import Activity
from tidegate.runtime.threads import ThreadPools
from tidegate.wire.control import ControlClient, ControlSettings
from tidegate.wire._gen.control_pb2 import Hello, NodeMessage
address, secret, hold = sys.argv[1:]
activity = Activity()
settings = ControlSettings(heartbeat_s=0.1, silence_s=30.0)
client = ControlClient(address, secret.encode(), lambda m: None, lambda e: None, settings=settings, heartbeat=activity.heartbeat)
activity.on_first = client.beat
client.send(NodeMessage(hello=Hello(node=3, gang=9)))
pools = ThreadPools("node", activity=activity)
sleep = ctypes.PyDLL(None).sleep if hold == "holds" else time.sleep
pools.executor("map-spin").submit(sleep, 20)
print("there", flush=True)
time.sleep(20)
"""


@pytest.mark.parametrize("how", ["holds the interpreter", "is stopped"])
def test_a_node_that_stands_still_is_noticed_in_time_with_what_it_was_doing(coordinator: Log, how: str) -> None:
    settings = ControlSettings(heartbeat_s=0.1, silence_s=1.5)
    server = ControlServer(coordinator, SECRET, settings=settings)
    hold = "holds" if how.startswith("holds") else "waits"
    child = subprocess.Popen([sys.executable, "-c", NODE, server.address, SECRET.decode(), hold], stdout=subprocess.PIPE)
    try:
        coordinator.wait("joined")
        connection = coordinator.connections[0]
        if how == "is stopped":
            assert child.stdout is not None and child.stdout.readline()
            assert wait_for(lambda: bool(connection.heartbeat.doing))
            child.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        (error,) = coordinator.wait("left")
        assert isinstance(error, NodeStalled) and "said nothing for" in str(error)
        assert time.monotonic() - began < 4 * settings.silence_s
        assert told(connection.heartbeat).startswith("in map_batches 'spin' for ")
    finally:
        child.kill()
        child.communicate()
        server.close()


def test_a_function_that_only_runs_long_does_not_stop_heartbeats(coordinator: Log) -> None:
    server = ControlServer(coordinator, SECRET, settings=ControlSettings(heartbeat_s=0.1, silence_s=1.5))
    child = subprocess.Popen([sys.executable, "-c", NODE, server.address, SECRET.decode(), "waits"], stdout=subprocess.PIPE)
    try:
        coordinator.wait("joined")
        connection = coordinator.connections[0]
        assert wait_for(lambda: any(one.running and one.for_ms > 2_500 for one in connection.heartbeat.doing))
        assert coordinator.of("left") == []
    finally:
        child.kill()
        child.communicate()
        server.close()


def wait_for(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_heartbeats_come_however_much_else_is_said(connect, coordinator: Log, node: Log) -> None:
    """They say what a node does, and a busy one is the one to watch."""
    client = connect(node)
    client.send(HELLO)
    coordinator.wait("joined")
    before = coordinator.connections[0].heartbeat
    deadline = time.monotonic() + 20
    while coordinator.connections[0].heartbeat is before and time.monotonic() < deadline:
        client.send(NodeMessage(drained=Drained(gang=9)))
        time.sleep(0.001)
    assert coordinator.connections[0].heartbeat is not before


@pytest.mark.parametrize("error", [ValueError("x"), MemoryError("x")])
def test_a_client_whose_reader_dies_is_lost_and_says_of_what(server: ControlServer, coordinator: Log, error: Exception) -> None:
    node = Log()

    def raises(message: CoordinatorMessage) -> None:
        raise error

    client = ControlClient(server.address, SECRET, raises, node.on_lost, settings=QUICK)
    try:
        client.send(HELLO)
        coordinator.wait("joined")
        coordinator.connections[0].send(CoordinatorMessage(stop=Stop()))
        (lost,) = node.wait("lost")
        assert isinstance(lost, ThreadDied) and lost.__cause__ is error
    finally:
        client.close()


def test_a_server_whose_watch_dies_says_so(coordinator: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would notice silence any more."""
    monkeypatch.setattr(coordinator, "broken", lambda death: coordinator.add("broken", death), raising=False)
    server = ControlServer(coordinator, SECRET, settings=ControlSettings(heartbeat_s=0.02, silence_s=0.2))
    try:
        server._connections = None  # type: ignore[assignment]
        (death,) = coordinator.wait("broken")
        assert isinstance(death, ThreadDied) and isinstance(death.__cause__, TypeError)
    finally:
        server._connections = set()
        server.close()


# -- attackers -----------------------------------------------------------------------------------------------------

METHOD_PATH = f"/{SERVICE}/{METHOD}"


class Tap:
    """Passes a TCP connection on and keeps what the node said."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listener]
        self._threads = [threading.Thread(target=self._run)]
        self._threads[0].start()
        self.heard = bytearray()
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def _run(self) -> None:
        with suppress(OSError):
            node = self._listener.accept()[0]
            driver = socket.create_connection(self._target)
            self._sockets += [node, driver]
            self._threads.append(threading.Thread(target=self._pump, args=(driver, node, bytearray())))
            self._threads[-1].start()
            self._pump(node, driver, self.heard)

    def _pump(self, source: socket.socket, target: socket.socket, kept: bytearray) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                kept += data
                target.sendall(data)

    def close(self) -> None:
        for sock in self._sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join(20)


def test_what_a_tap_has_recorded_opens_no_line(server: ControlServer, coordinator: Log, node: Log) -> None:
    tap = Tap(server.address)
    client = ControlClient(tap.address, SECRET, node.on_message, node.on_lost, settings=QUICK)
    client.send(HELLO)
    client.send(NodeMessage(drained=Drained(gang=9)))
    coordinator.wait("message")
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port)), 20) as replay:
        replay.sendall(tap.heard)
        answer = bytearray()
        while b"the secret is wrong" not in answer:
            data = replay.recv(1 << 16)
            assert data, "it hung up"
            answer += data
    assert [kind for kind, _ in coordinator.entries] == ["joined", "message"]
    client.close()
    tap.close()


def test_a_false_driver_is_not_obeyed_and_learns_nothing(node: Log) -> None:
    heard: list[bytes] = []

    def attend(requests: Iterator[bytes], context: object) -> Iterator[bytes]:
        heard.append(next(requests))
        yield bytes(64)
        yield CoordinatorMessage(stop=Stop(reason="obey me")).SerializeToString()
        heard.extend(requests)

    handler = grpc.method_handlers_generic_handler(SERVICE, {METHOD: grpc.stream_stream_rpc_method_handler(attend)})
    pool = ThreadPoolExecutor(2)
    false = grpc.server(pool, handlers=[handler])
    port = false.add_insecure_port("127.0.0.1:0")
    false.start()
    client = ControlClient(f"127.0.0.1:{port}", SECRET, node.on_message, node.on_lost, settings=QUICK)
    client.send(HELLO)
    (error,) = node.wait("lost")
    assert "who answers there does not know the job's secret" in str(error)
    assert node.of("message") == []
    client.close()
    false.stop(0).wait()
    pool.shutdown()
    assert len(heard) == 1 and b"here" not in heard[0]


@pytest.mark.parametrize("what", ["nothing", "inject", "repeat", "change"])
def test_who_stands_between_a_node_and_the_driver_says_nothing_in_their_name(
    server: ControlServer, coordinator: Log, node: Log, what: str
) -> None:
    """It passes the proof on, as it must, and then plays with the messages."""

    def attend(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        channel = grpc.insecure_channel(server.address, options=[("grpc.use_local_subchannel_pool", 1)])
        call = channel.stream_stream(METHOD_PATH)(played(requests))
        context.add_callback(channel.close)
        with suppress(grpc.RpcError):
            yield from call

    def played(requests: Iterator[bytes]) -> Iterator[bytes]:
        with suppress(grpc.RpcError):
            yield next(requests)
            yield next(requests)
            hello = next(sealed for sealed in requests if b"here" in sealed)
            if what == "change":
                hello = hello.replace(b"here", b"evil")
            yield hello
            if what == "repeat":
                yield hello
            if what == "inject":
                yield NodeMessage(failed=Failed(gang=9, error_type="InvalidUseError", message="bye")).SerializeToString()
            yield from requests

    handler = grpc.method_handlers_generic_handler(SERVICE, {METHOD: grpc.stream_stream_rpc_method_handler(attend)})
    pool = ThreadPoolExecutor(4)
    between = grpc.server(pool, handlers=[handler])
    port = between.add_insecure_port("127.0.0.1:0")
    between.start()
    # No heartbeat comes before the hello, so that its number is the one that was sealed.
    quiet = ControlSettings(heartbeat_s=4.0, silence_s=5.0)
    client = ControlClient(f"127.0.0.1:{port}", SECRET, node.on_message, node.on_lost, settings=quiet)
    client.send(HELLO)
    if what == "nothing":
        coordinator.wait("joined")
        coordinator.connections[0].send(CoordinatorMessage(welcome=Welcome(gang=9)))
        node.wait("message")
    else:
        node.wait("lost")
        assert coordinator.of("message") == []
        assert coordinator.of("joined") == ([] if what == "change" else [3])
        for error in coordinator.of("left"):
            assert "comes from somebody else" in str(error)
    client.close()
    between.stop(0).wait()
    pool.shutdown()


@pytest.mark.parametrize("words", [[], [b""], [b"GET / HTTP/1.1"], ["hello", b"no proof"], ["hello"]], ids=str)
def test_a_stranger_that_proves_nothing_is_refused(
    server: ControlServer, coordinator: Log, caplog: pytest.LogCaptureFixture, words: list[Any]
) -> None:
    said = [NodeProof(SECRET, bytes(32)).hello if word == "hello" else word for word in words]
    with grpc.insecure_channel(server.address) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            list(channel.stream_stream(METHOD_PATH)(iter(said)))
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert coordinator.entries == []
    assert "refused a node: " in caplog.text and "peer=127.0.0.1:" in caplog.text
    assert SECRET.decode() not in caplog.text


def test_a_node_that_is_refused_by_the_driver_is_fenced(node: Log) -> None:
    def attend(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "no")
        yield b""

    handler = grpc.method_handlers_generic_handler(SERVICE, {METHOD: grpc.stream_stream_rpc_method_handler(attend)})
    pool = ThreadPoolExecutor(2)
    refusing = grpc.server(pool, handlers=[handler])
    port = refusing.add_insecure_port("127.0.0.1:0")
    refusing.start()
    client = ControlClient(f"127.0.0.1:{port}", SECRET, node.on_message, node.on_lost, settings=QUICK)
    assert isinstance(node.wait("lost")[0], FencedError)
    client.close()
    refusing.stop(0).wait()
    pool.shutdown()
