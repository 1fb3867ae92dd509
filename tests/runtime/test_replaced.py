"""A driver that another one has replaced says by whom and since when, and changes nothing. A store that does not answer is not
another driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from runtime_jobs import GatedSource, MemorySink, events, rows_of
from runtime_world import World

import tidegate as tg
from tidegate.core.checkpoint.effects import Replaced, StoreSilent, Unpublishable
from tidegate.core.checkpoint.mode import Mode
from tidegate.core.log.view import Takeover
from tidegate.errors import RetryableError
from tidegate.runtime.logstore import objects_fault
from tidegate.runtime.report import stepped_down
from tidegate.store.open import open_store

BY = Takeover(slot=9, term=9, write_id="x", leader="abc", host="there", pid=7, wall_ms=1_700_000_000_000)


class Watched:
    """Notes who changes the store."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.changes: list[tuple[str, str]] = []
        self.silent = ""

    def __getattr__(self, verb: str) -> Any:
        real = getattr(self._store, verb)
        return real if not callable(real) else lambda *args: self._ask(verb, real, *args)

    def _ask(self, verb: str, real: Callable[..., Any], *args: Any) -> Any:
        if verb == self.silent and "/log/" in str(args[0]):
            raise RetryableError("503 service unavailable")
        if verb in ("put", "create", "delete"):
            self.changes.append((verb, str(args[0])))
        return real(*args)


def job(source: GatedSource, sink: MemorySink) -> tg.Pipeline:
    """Rows as they come, and all of them counted at the end: state that is too large to be inline, so it can be collected."""
    rows = tg.from_source(source)
    counted = rows.key_by("key").window(tg.tumbling("10h")).aggregate(n=tg.count())
    return tg.Pipeline("w", rows.write(sink), counted.write(MemorySink("counts")))


def begun() -> tuple[World, Any, GatedSource, MemorySink]:
    source, sink = GatedSource(events(3_000, keys=3_000), rows_per_poll=50, allowed=1_200), MemorySink()
    store = Watched(open_store("memory://"))
    world = World(job(source, sink), 2, store=store, retain=2)
    world.until(lambda: world.leader._outcomes.committed >= 3 and source.emitted == 1_200)
    world.until(lambda: world.leader._machine.log.head is not None and world.leader._machine.log.head.objects)
    return world, store, source, sink


def challenged(first: World, store: Any, source: GatedSource, sink: MemorySink) -> World:
    """A second driver commits far beyond what is retained; the first stands still meanwhile."""
    second = World(job(source, sink), 2, store=store._store, retain=2, seed=1)
    source.allow(800)
    second.until(lambda: second.leader._outcomes.committed >= 8 and source.emitted == 2_000)
    head = first.leader._machine.log.head
    assert head is not None and objects_fault(store, head) is not None, "what the first would start from was collected"
    store.changes.clear()
    return second


def test_a_driver_that_wakes_up_after_it_was_replaced_says_so_and_changes_nothing() -> None:
    """It used to say that every retained checkpoint is damaged: the second driver had collected them."""
    first, mine, source, sink = begun()
    second = challenged(first, mine, source, sink)
    first.kill_node(0)
    while first.step():
        pass
    text = str(first.leader.error)
    assert first.leader.status == "FAILED" and "another driver has taken over this job" in text
    assert "damaged" not in text and second.leader._machine.leader in text
    assert [paths for verb, paths in mine.changes if verb == "delete" and paths != "[]"] == []
    assert first.gangs == 1, "nothing was started again"
    source.allow()
    second.finish()
    assert sink.rows() == rows_of(source.table)


def test_one_that_was_replaced_while_it_decided_what_to_start_from_says_so_too() -> None:
    """It had found the log to be its own; then it was paused, and what it wanted to start from was collected."""
    first, store, source, sink = begun()
    first.kill_node(0)
    deciding: Any = first.leading.threads.executor("log")
    first.until(lambda: first.leader._machine.mode is Mode.READY and deciding.waiting)
    second = challenged(first, store, source, sink)
    while first.step():
        pass
    assert "another driver has taken over this job" in str(first.leader.error)
    source.allow()
    second.finish()
    assert sink.rows() == rows_of(source.table)


def test_a_store_that_gives_no_answer_to_a_put_is_named_and_not_taken_for_another_driver() -> None:
    world, store, _, _ = begun()
    store.silent = "create"
    while world.step():
        pass
    text = str(world.leader.error)
    assert "gave up, the job's log can't be written" in text and "503 service unavailable" in text
    assert "another driver" not in text


def test_a_store_that_cannot_be_listed_when_the_gang_is_lost_is_named_too() -> None:
    world, store, _, _ = begun()
    store.list = lambda prefix: (_ for _ in ()).throw(RetryableError("503 service unavailable"))  # type: ignore[attr-defined]
    world.kill_node(0)
    while world.step():
        pass
    assert "the store did not answer for 600 s" in str(world.leader.error)


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (Replaced(BY, 9), "process 7 on there leads since 2023-11-14 22:13:20 UTC leader=abc term=9"),
        (Replaced(Takeover(slot=9, term=9, write_id="x", leader="abc"), 9), "on an unknown host leads since an unknown time"),
        (Replaced(None, 9, "its checksum differs"), "another driver has taken over slot=9: its checksum differs; this driver"),
        (StoreSilent(61_000, "503"), "did not answer for 61 s, so nobody knows what the log holds: check the store"),
        (Unpublishable(20, "no space"), "could not be made visible in 20 tries: fix the sink and start the job again"),
    ],
)
def test_why_a_driver_stepped_down_can_be_read(reason: Any, words: str) -> None:
    assert words in stepped_down(reason)
