"""A whole job in one world that a test steps: a leader and its nodes take turns, and only one of them runs at a time.

Every loop runs in a thread of its own, but a thread runs only while it holds the turn, from one look into its mailbox to the
next. Who is next is drawn from a seed, so the same seed gives the same story. Background work waits in queues until the world
lets one piece of it run. The clock stands still but for what the world adds. Nothing ever waits for real time.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from dataclasses import replace
from typing import Any

from runtime_jobs import QUICK, GatedSource

import tidegate as tg
from tidegate.core.checkpoint.config import CheckpointConfig
from tidegate.core.checkpoint.coordinate import DistributedCheckpointCoordinator
from tidegate.core.checkpoint.manifest import CheckpointManifest
from tidegate.core.failure.restart import FailureKind
from tidegate.operators.source import Read
from tidegate.runtime.gang import Exit, LocalHost
from tidegate.runtime.gangs import GangSetup
from tidegate.runtime.host import Launch
from tidegate.runtime.leader import Leader
from tidegate.runtime.leadersetup import LeaderSetup
from tidegate.runtime.logstore import LogStore
from tidegate.runtime.mailbox import Mailbox
from tidegate.runtime.node import Node
from tidegate.runtime.setup import NodeSetup
from tidegate.runtime.shape import plan_shape
from tidegate.runtime.sinks import SinkPublisher
from tidegate.runtime.start import coordinator_config
from tidegate.store.interface import Store
from tidegate.store.open import open_store
from tidegate.wire._gen import control_pb2 as pb
from tidegate.wire.arrow import Message
from tidegate.wire.transport import ChannelId, InProcessHub, InProcessTransport

STUCK_S = 20.0
STEPS_MAX = 60_000


class Killed(BaseException):
    """The world took this actor away."""


class FakeClock:
    """Stands still until somebody moves it."""

    def __init__(self) -> None:
        self.at_ms = 1_000

    def now_ms(self) -> int:
        return self.at_ms

    def wall_ms(self) -> int:
        return self.at_ms


class TurnMailbox(Mailbox[Callable[[], None]]):
    """A mailbox whose ``take`` ends the actor's turn."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.wants_ms: int | None = 0
        self.held: deque[Callable[[], None]] = deque()
        self.dead = False
        self._go = threading.Semaphore(0)
        self._back = threading.Semaphore(0)

    def post(self, item: Callable[[], None]) -> None:
        if not self.dead:
            self.held.append(item)

    def take(self, timeout_ms: int | None) -> list[Callable[[], None]]:
        self.wants_ms = timeout_ms
        self._back.release()
        self._go.acquire()
        if self.dead:
            raise Killed
        taken = list(self.held)
        self.held.clear()
        return taken

    def turn(self) -> None:
        """Let the actor run until it looks into its mailbox again, or ends."""
        self._go.release()
        assert self._back.acquire(timeout=STUCK_S), f"{self.name} is stuck in its turn"

    def ended(self) -> None:
        """The actor has returned."""
        self.dead = True
        self._back.release()

    @property
    def is_ready(self) -> bool:
        return bool(self.held) or self.wants_ms == 0


class QueuedExecutor(Executor):
    """Keeps what it is given until the world runs it, in order."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, lambda: fn(*args, **kwargs)))
        return future

    def run_one(self) -> None:
        future, work = self.waiting.popleft()
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = work()
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(result)


class QueuedThreads:
    """Executors of one actor."""

    def __init__(self) -> None:
        self.executors: dict[str, QueuedExecutor] = {}

    def executor(self, name: str) -> Executor:
        return self.executors.setdefault(name, QueuedExecutor())

    def close(self) -> None:
        for executor in self.executors.values():
            for future, _ in executor.waiting:
                future.cancel()
            executor.waiting.clear()


class Actor:
    """A loop with its mailbox, its background work and its thread."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.mailbox = TurnMailbox(name)
        self.threads = QueuedThreads()
        self.outcome: str | None = None
        self.alive = True

    def launch_job(self, work: Callable[[], str | None]) -> None:
        """Start the thread; it stops at its first look into the mailbox."""

        def run() -> None:
            try:
                self.outcome = work()
            except Killed:
                self.outcome = "killed"
            finally:
                self.alive = False
                self.threads.close()
                self.mailbox.ended()

        thread = threading.Thread(target=run, name=f"world-{self.name}", daemon=True)
        thread.start()
        assert self.mailbox._back.acquire(timeout=STUCK_S), f"{self.name} did not begin"

    def kill(self) -> None:
        """Take it away at its next look, which is now."""
        if self.alive:
            self.mailbox.dead = True
            self.mailbox.turn()


class Connection:
    """A node's line, as the leader sees it."""

    def __init__(self, world: World, index: int, node: Node, hello: pb.Hello) -> None:
        self._world = world
        self.index = index
        self._node = node
        self.hello = hello
        self.heartbeat = pb.Heartbeat()

    def send(self, message: pb.CoordinatorMessage) -> None:
        if self._world.passes("down", self.index, message):
            self._node.control_message(message)


class Line:
    """A node's line, as the node sees it."""

    def __init__(self, world: World, actor: Actor, index: int) -> None:
        self._world = world
        self._actor = actor
        self._index = index
        self.node: Node
        self.leader = world.leader
        self.connection: Connection | None = None

    def send(self, message: pb.NodeMessage) -> None:
        kind = message.WhichOneof("body")
        self._world.said.append((self._index, str(kind)))
        if self._actor.mailbox.dead or not self._world.passes("up", self._index, message):
            return
        if kind == "hello":
            self.connection = Connection(self._world, self._index, self.node, message.hello)
            self.leader.joined(self.connection)
        elif self.connection is not None:
            self.leader.message(self.connection, message)


class Tap:
    """Notes what a node receives from others, and passes it on."""

    def __init__(self, node: Node, wire: list[tuple[ChannelId, Message]]) -> None:
        self._node = node
        self._wire = wire

    def received(self, channel: ChannelId, message: Message, size_bytes: int) -> None:
        self._wire.append((channel, message))
        self._node.received(channel, message, size_bytes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)


class WorldGang:
    """The launcher: starts nodes as actors of the world."""

    def __init__(self, world: World) -> None:
        self._world = world

    def start(self, launch: Launch, on_exit: Callable[[Exit | None], None]) -> None:
        self._world.start_nodes(launch, on_exit)

    def running(self) -> int | None:
        return len(self._world.nodes)

    def cancel(self) -> None:
        for actor in list(self._world.nodes.values()):
            self._world.doomed.append(actor)

    def join(self, timeout_s: float) -> bool:
        return not self._world.nodes


class World:
    """The job, the store and the time. One leader at a time; kill it and begin another on the same store."""

    def __init__(
        self,
        pipeline: tg.Pipeline,
        parallelism: int,
        *,
        seed: int = 0,
        interval: str | None = "30ms",
        store: Store | None = None,
        credit_bytes: int = 128 << 20,
        **checkpoint: Any,
    ) -> None:
        self.plan = pipeline.physical(parallelism)
        self.parallelism = parallelism
        self.random = random.Random(seed)
        self.clock = FakeClock()
        self.store = store or open_store("memory://")
        self.config = CheckpointConfig(interval=interval, data_dir="memory", **checkpoint)
        self.credit_bytes = credit_bytes
        self.said: list[tuple[int, str]] = []
        self.wire: list[tuple[ChannelId, Message]] = []
        self.steps = 0
        self.nodes: dict[int, Actor] = {}
        self.lines: dict[int, Line] = {}
        self.doomed: list[Actor] = []
        self.passes: Callable[[str, int, Any], bool] = lambda way, node, message: True
        self.gangs = 0
        self.pace_ms = 12
        self._exit: Callable[[Exit | None], None] = lambda why: None
        specs = [spec for stage in self.plan.stages for spec in stage.operators if isinstance(spec, Read)]
        self._feeds = [spec.source for spec in specs if isinstance(spec.source, GatedSource) and spec.source.fed]
        self.leader: Leader
        self.leading: Actor
        self.lead()

    # -- beginnings ------------------------------------------------------------------------------------------------

    def lead(self, restore: Any = "latest", name: str | None = None) -> Leader:
        """Begin a leader on the store as it is."""
        actor = Actor("leader")
        setup = self.setup(restore, name or f"leader{self.random.random()}")
        self.leader = Leader(setup, clock=self.clock, threads=actor.threads)
        self.leader._mailbox = actor.mailbox
        self.leader.check()
        self.leading = actor
        actor.launch_job(self.leader.run)  # type: ignore[arg-type]
        return self.leader

    def setup(self, restore: Any, name: str) -> LeaderSetup:
        """What a leader is made of."""
        shape = plan_shape(self.plan, self.parallelism)
        publisher = SinkPublisher(self.plan)
        return LeaderSetup(
            coordinator=DistributedCheckpointCoordinator(shape, coordinator_config(self.config), leader=name),
            log=LogStore(self.store, self.plan.job),
            gangs=GangSetup(
                host=LocalHost(WorldGang(self), self._launch),
                publisher=publisher,
                parallelism=self.parallelism,
                restarts=QUICK,
            ),
            publisher=publisher,
            restore=restore,
            overwrite=False,
            checkpointing=self.config.enabled,
        )

    def _launch(self, gang: int, restore_url: str | None = None) -> Launch:
        specs = [spec for stage in self.plan.stages for spec in stage.operators if isinstance(spec, Read)]
        setup = NodeSetup(
            plan=self.plan,
            node=0,
            parallelism=self.parallelism,
            gang=gang,
            splits={spec.name: tuple(spec.source.splits()) for spec in specs},
            checkpoints=self.config.unaligned_config() if self.config.enabled else None,
            credit_bytes=self.credit_bytes,
        )
        return Launch(setup, "world", b"secret", None)

    def start_nodes(self, launch: Launch, on_exit: Callable[[Exit | None], None]) -> None:
        assert not self.nodes, "the old gang must be gone before the next starts"
        self.gangs += 1
        self._exit = on_exit
        hub = InProcessHub()
        for index in range(self.parallelism):
            actor = Actor(f"node{index}.{self.gangs}")
            self.nodes[index] = actor
            store = self.store if self.config.enabled else None
            setup = replace(launch.setup, node=index)
            node = Node(setup, clock=self.clock, mailbox=actor.mailbox, store=store, threads=actor.threads)
            line = Line(self, actor, index)
            line.node = node
            self.lines[index] = line
            transport = InProcessTransport(hub, Tap(node, self.wire))
            actor.launch_job(lambda n=node, t=transport, li=line: n.run(t, li, pid=1, host="world"))  # type: ignore[misc]

    # -- steps -----------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """One turn of somebody, or one piece of background work, or time. False when all is over."""
        self.steps += 1
        assert self.steps < STEPS_MAX, f"no end after {self.steps} steps: {self.leader.status} {self.leader.metrics()}"
        self._bury()
        if not self.leading.alive:
            return False
        for source in self._feeds:
            source.allow(self.random.choice((0, 0, source.rows_per_poll)))
        choices = list(self._choices())
        if choices:
            self.random.choice(choices)()
            self.clock.at_ms += self.random.randrange(self.pace_ms)
        else:
            self._sleep()
        self._bury()
        return self.leading.alive

    def _actors(self) -> list[Actor]:
        return [self.leading, *self.nodes.values()]

    def _choices(self) -> Iterator[Callable[[], None]]:
        for actor in self._actors():
            if actor.alive and actor.mailbox.is_ready:
                yield actor.mailbox.turn
            queues = {name: queue for name, queue in actor.threads.executors.items() if queue.waiting}
            # An upload waits for what the sinks of its node stage, and here nobody can wait.
            staging = any(name.startswith("sink-") for name in queues)
            yield from (queues[name].run_one for name in sorted(queues) if name != "upload" or not staging)

    def _sleep(self) -> None:
        """Nothing to do: go to the next time anybody waits for."""
        waits = [a.mailbox.wants_ms for a in self._actors() if a.alive and a.mailbox.wants_ms is not None]
        assert waits, f"everybody waits for ever: {self.leader.status}"
        self.clock.at_ms += max(1, min(waits))
        for actor in self._actors():
            wants = actor.mailbox.wants_ms
            if actor.alive and wants is not None and wants <= max(1, min(waits)):
                actor.mailbox.turn()

    def _bury(self) -> None:
        while self.doomed:
            self.doomed.pop().kill()
        for index, actor in list(self.nodes.items()):
            if not actor.alive:
                del self.nodes[index]
                line = self.lines.pop(index)
                if line.connection is not None:
                    line.leader.left(line.connection, None)
                if not self.nodes:
                    why = actor.outcome if actor.outcome and actor.outcome.startswith("failed") else None
                    self._exit(None if why is None else Exit(FailureKind.PEER_LOST, why))

    # -- what tests do ---------------------------------------------------------------------------------------------

    def kill_node(self, index: int) -> None:
        """It is gone without a word; its channels break."""
        if index in self.nodes:
            self.nodes[index].kill()
        self._bury()

    def kill_leader(self) -> None:
        """The driver dies: its gang loses its line and ends by itself."""
        self.leading.kill()
        self.leading.threads.close()
        for actor in list(self.nodes.values()):
            actor.kill()
        self.nodes.clear()
        self.lines.clear()

    def until(self, condition: Callable[[], Any]) -> None:
        """Step until this holds."""
        while not condition():
            assert self.step(), f"the job ended first: {self.leader.status} {self.leader.error}"

    def finish(self) -> None:
        """Step until the job has ended, and see that it ended well."""
        while self.step():
            pass
        assert self.leader.status == "FINISHED", (self.leader.status, self.leader.error, self.leader.cause)

    def close(self) -> None:
        """Take everybody away."""
        self.kill_leader()

    def manifests(self) -> Mapping[int, CheckpointManifest]:
        """Committed manifests by epoch."""
        view = LogStore(self.store, self.plan.job).view()
        return {manifest.epoch: manifest for manifest in view.restorables()}
