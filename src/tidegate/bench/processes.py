"""A gang without Spark whose nodes are processes: each has an interpreter of its own, and can be killed.

A node's process is told everything in one line of JSON on its standard input, which then stays open: when it ends, so has
whoever started the node, and the node goes too. What a user's function prints goes to standard error; standard output has
the node's last words. Nothing is pickled: the process builds its plan itself, with the function that the ``Recipe`` names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import reduce
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tidegate.core.barrier.align import UnalignedCheckpointConfig
from tidegate.core.failure.restart import Failure, FailureKind, first_cause
from tidegate.errors import InvalidUseError, ThreadDied
from tidegate.ids import GangNumber, NodeId
from tidegate.plan.connector import Split
from tidegate.plan.physical import PhysicalPlan
from tidegate.runtime.failure import kind_of
from tidegate.runtime.gang import Exit
from tidegate.runtime.host import Launch, run_node
from tidegate.runtime.setup import NodeSetup
from tidegate.supervise import only_logged, supervised

if TYPE_CHECKING:
    from tidegate.api.pipeline import Pipeline

START = (
    "import json, sys; told = json.loads(sys.stdin.buffer.readline()); sys.path[:] = told['path']; "
    "from tidegate.bench.processes import main; main(told)"
)
WORDS_MAX = 4_000
"""So that last words fit into a pipe that nobody reads yet."""
OWN_WAY = ("setup", "secret", "tls")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How every process builds the same plan: a function of a module, called with these values, returns the pipeline."""

    function: str
    arguments: tuple[str | float | None, ...]
    parallelism: int

    def plan(self) -> PhysicalPlan:
        """Build it."""
        module, _, name = self.function.partition(":")
        pipeline: Pipeline = getattr(import_module(module), name)(*self.arguments)
        return pipeline.physical(self.parallelism)


def encoded(launch: Launch, recipe: Recipe) -> dict[str, Any]:
    """All that a node is told but its plan, as JSON has it."""
    if launch.tls is not None:
        raise InvalidUseError("nodes as processes talk on this machine alone: start the job without TLS")
    setup = launch.setup
    return {
        "path": sys.path,
        "recipe": asdict(recipe),
        "launch": {field.name: getattr(launch, field.name) for field in fields(launch) if field.name not in OWN_WAY},
        "secret": launch.secret.hex(),
        "gang": setup.gang,
        "splits": {source: [asdict(split) for split in splits] for source, splits in setup.splits.items()},
        "checkpoints": None if setup.checkpoints is None else asdict(setup.checkpoints),
        "rest": {name: getattr(setup, name) for name in ("compression", "credit_bytes", "progress_interval_ms")},
    }


def decoded(told: Mapping[str, Any], node: NodeId) -> Launch:
    """The same in the node's process, with the plan built again."""
    recipe = Recipe(**told["recipe"])
    setup = NodeSetup(
        plan=recipe.plan(),
        node=node,
        parallelism=recipe.parallelism,
        gang=GangNumber(told["gang"]),
        splits={source: [Split(**split) for split in splits] for source, splits in told["splits"].items()},
        checkpoints=None if told["checkpoints"] is None else UnalignedCheckpointConfig(**told["checkpoints"]),
        **told["rest"],
    )
    return Launch(setup=setup, secret=bytes.fromhex(told["secret"]), **told["launch"])


class NodeProcess:
    """One node: a Python of its own, in a session of its own, so that ctrl-c in a terminal reaches the driver alone."""

    def __init__(self, index: NodeId) -> None:
        self.index = index
        self.process = subprocess.Popen(
            [sys.executable, "-c", START], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )

    def tell(self, told: Mapping[str, Any]) -> None:
        """Say what to run. A process that is gone already hears nothing; ``wait`` says so."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({**told, "node": self.index}).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return

    def wait(self) -> Failure | None:
        """Wait for its end; returns what it failed of."""
        assert self.process.stdout is not None
        words = self.process.stdout.read()
        code = self.process.wait()
        self._close()
        if words:
            said = json.loads(words)
            return Failure(FailureKind(said["kind"]), f"node {self.index}: {said['text']}", self.index)
        if code:
            text = f"node {self.index}: its process ended without a word pid={self.process.pid} exit={code}"
            return Failure(FailureKind.LOST, text, self.index)
        return None

    def _close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdout.close()
        try:
            self.process.stdin.close()
        except BrokenPipeError:  # what it was told and never read
            return


class ProcessGang:
    """Starts nodes as processes of this machine. A ``Launcher`` of its ``plan``, for benchmarks and for tests that kill."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self.plan = recipe.plan()
        self._nodes: list[NodeProcess] = []
        self._waiting = supervised("tidegate-nodes", lambda: None, only_logged)

    def start(self, launch: Launch, on_exit: Callable[[Exit | None], None]) -> None:
        """Start every process; ``on_exit`` is called once, when the last has ended, from another thread."""
        if not _same(launch.setup.plan, self.plan):
            raise InvalidUseError("nodes as processes build their own plan: start the gang's, without collect or stored sources")
        told = encoded(launch, self._recipe)
        nodes: list[NodeProcess] = []
        self._nodes = nodes

        def work() -> None:
            for node in nodes:
                node.tell(told)
            failures = [failure for node in nodes if (failure := node.wait()) is not None]
            cause = reduce(first_cause, failures) if failures else None
            on_exit(None if cause is None else Exit(cause.kind, cause.text))

        def died(death: ThreadDied) -> None:
            self.cancel()
            on_exit(Exit(kind_of(death), str(death)))

        try:
            nodes.extend(map(NodeProcess, map(NodeId, range(self._recipe.parallelism))))
        except BaseException:
            self.cancel()
            raise
        self._waiting = supervised("tidegate-nodes", work, died)
        self._waiting.start()

    @property
    def pids(self) -> list[int]:
        """The processes of the newest gang, by node."""
        return [node.process.pid for node in self._nodes]

    def running(self) -> int | None:
        """How many processes have not ended."""
        return sum(node.process.poll() is None for node in self._nodes)

    def cancel(self) -> None:
        """Kill what is still running: a process that is stopped would not hear anything else."""
        for node in self._nodes:
            node.process.kill()

    def join(self, timeout_s: float) -> bool:
        """Wait for every process. True when all have ended."""
        if self._waiting.ident is not None:
            self._waiting.join(timeout_s)
        return not self._waiting.is_alive()


def _same(launched: PhysicalPlan, built: PhysicalPlan) -> bool:
    """Both have the very same operators."""
    ours, theirs = built.operators, launched.operators
    return len(ours) == len(theirs) and all(one is other for one, other in zip(ours, theirs, strict=True))


# -- in a node's process ---------------------------------------------------------------------------------------------


def main(told: Mapping[str, Any]) -> None:
    """Run the node to its end."""
    words = os.dup(1)  # not inherited by what the node may start, unlike 1
    os.dup2(2, 1)
    supervised("tidegate-parent", _end_with_parent, only_logged).start()
    failure = _run(told, NodeId(told["node"]))
    if failure is not None:
        said = {"kind": int(failure.kind), "text": failure.text[:WORDS_MAX]}
        os.write(words, json.dumps(said).encode())


def _run(told: Mapping[str, Any], node: NodeId) -> Exit | None:
    try:
        outcome = run_node(decoded(told, node), node)
    except Exception as error:  # the driver was never told: it learns from here
        return Exit(kind_of(error), repr(error))
    # A node that failed has said why itself, if anybody listened.
    return Exit(FailureKind.PEER_LOST, outcome) if outcome.startswith("failed") else None


def _end_with_parent() -> None:
    """Standard input ends when whoever started this process does, however that was."""
    while os.read(0, 1):
        pass
    os._exit(1)
