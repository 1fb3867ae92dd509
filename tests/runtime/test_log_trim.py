"""A log that grows for ever is summed up and trimmed, and whatever reads it meanwhile sees what is true."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from runtime_jobs import GatedSource, Jobs, MemorySink, events, rows_of
from runtime_world import World

import tidegate as tg
from tidegate.core.checkpoint.events import Followed, Last, Unknown
from tidegate.core.checkpoint.policy import DistributedCheckpointConfig
from tidegate.core.log.entries import explained
from tidegate.core.log.resolve import FallBack, resolve
from tidegate.core.log.view import Base, Commit, Damaged, LogRecord, LogView, Restore, Takeover
from tidegate.errors import CorruptDataError, RetryableError
from tidegate.runtime import logstore
from tidegate.runtime.logstore import LogStore
from tidegate.runtime.soundness import collect, verify
from tidegate.store.open import open_store
from tidegate.testing.store import Fault, FaultyStore

EVERY = DistributedCheckpointConfig().base_every


class Counting:
    """Notes every request to a store, and does on each what it is told to do."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.requests: list[tuple[str, str]] = []
        self.fails: set[str] = set()
        self.before: Callable[[str, str], None] = lambda verb, path: None
        self._lock = threading.RLock()

    def __getattr__(self, verb: str) -> Any:
        real = getattr(self._store, verb)
        return real if not callable(real) else lambda *args: self._ask(verb, real, *args)

    def _ask(self, verb: str, real: Any, *args: Any) -> Any:
        path = str(args[0])
        with self._lock:
            self.requests.append((verb, path))
            if path in self.fails or verb in self.fails:
                raise RetryableError(f"503 path={path}")
            self.before(verb, path)
        return real(*args)

    def taken(self) -> list[tuple[str, str]]:
        """The requests since the last look."""
        seen, self.requests = self.requests, []
        return seen


def plain(source: GatedSource, sink: MemorySink) -> tg.Pipeline:
    return tg.Pipeline("w", tg.from_source(source).write(sink))


class Case:
    """A job that has committed a little, was killed, and has led for a day since."""

    def __init__(self, entries: int = 0, *, trimmed: bool = True, **options: Any) -> None:
        self.store: Any = Counting(open_store("memory://"))
        self.source, self.sink = GatedSource(events(2_000), rows_per_poll=10, allowed=600), MemorySink()
        self.world = World(plain(self.source, self.sink), 2, store=self.store, retain=3, **options)
        self.log = LogStore(self.store, "w")
        self.world.until(lambda: self.world.leader._outcomes.committed >= 3)
        self.history: list[LogRecord] = []
        self.trimmed = trimmed
        if entries:
            self.world.kill_leader()
            self.history = self.log.read()
            self.view = LogView(self.history)
            self.put(Takeover(slot=self.view.next_slot, term=self.view.next_slot, write_id="pad/0", leader="pad"))
            self.grow(entries)
        self.store.taken()

    def put(self, entry: Any) -> None:
        assert self.log.create(entry) is None
        self.view.apply(entry)
        self.history.append(entry)

    def grow(self, entries: int, *, every: int = 10) -> None:
        """Commit what the head has, again and again, as a leader would."""
        while (slot := self.view.next_slot) < entries:
            self.sum_up() if self.view.since_base >= every else self.commit(slot)

    def commit(self, slot: int) -> None:
        head, term = self.view.head, self.view.term
        assert head is not None and term is not None
        numbers: dict[str, Any] = {"epoch": slot, "parent": head.epoch, "gang": self.view.gang, "term": term}
        oldest = max(self.view.oldest_restorable, slot - 5)
        manifest = replace(head, **numbers, checkpoint_id=(term << 32) + slot, committables=(), oldest_restorable=oldest)
        self.put(Commit(slot=slot, term=term, write_id=f"pad/{slot}", manifest=manifest))

    def sum_up(self) -> None:
        base = self.view.summed_up(f"pad/{self.view.next_slot}")
        assert base is not None
        self.put(base)
        if self.trimmed:
            self.log.trim_as_allowed()

    def finish(self, **options: Any) -> None:
        self.world.lead(**options)
        self.source.allow()
        self.world.finish()
        assert self.sink.rows() == rows_of(self.source.table)

    def path(self, slot: int) -> str:
        return self.log.paths.log_entry(slot)

    def flip(self, slot: int) -> None:
        FaultyStore(self.store).flip_bit(self.path(slot), 5_000)

    def bases(self) -> list[int]:
        return [entry.slot for entry in self.log.read() if isinstance(entry, Base)]


@pytest.fixture
def case() -> Iterator[Case]:
    case = Case(64)
    yield case
    case.world.close()


def state(view: LogView) -> tuple[object, ...]:
    return view.summed_up("w"), view.held(), view.damage, view.off_lineage(), list(view.lineage())


def folded(history: list[LogRecord]) -> LogView:
    view = LogView()
    for entry in explained(history):
        view.apply(entry)
    return view


# -- reading -----------------------------------------------------------------------------------------------------------


def test_a_job_with_a_day_behind_it_starts_with_a_few_requests() -> None:
    case = Case(3_000)
    assert len(case.log.slots()) < 50, "3,000 were written"
    case.store.taken()
    case.world.lead()
    requests = case.store.taken()
    assert len(requests) < 50 and len([path for verb, path in requests if verb == "list"]) <= 2
    assert case.world.leader.restored_from == 2_999 - isinstance(case.history[-1], Base)
    case.finish()


@pytest.mark.parametrize("trimmed", [False, True])
@pytest.mark.parametrize("entries", [17, 18, 19, 25, 26, 27, 60])
def test_a_trimmed_log_adds_up_to_the_same_as_all_of_it(entries: int, trimmed: bool) -> None:
    case = Case(entries, trimmed=trimmed)
    assert state(case.log.view()) == state(LogView(case.log.read())) == state(folded(case.history))
    assert (len(case.log.slots()) < entries) == (trimmed and len(case.bases()) > 1 and case.bases()[-1] < entries)
    case.finish()


def test_the_base_before_is_taken_if_the_newest_is_damaged(case: Case) -> None:
    before = case.log.view()
    case.flip(case.bases()[-1])
    view = case.log.view()
    assert [each.kind for each in view.damage] == ["base"] and view.head_epoch == before.head_epoch
    assert [m.epoch for m in view.restorables()] == [m.epoch for m in before.restorables()]
    case.finish()


def test_a_retained_manifest_below_the_base_that_is_damaged_is_skipped_and_named(case: Case) -> None:
    case.sum_up()
    head = case.view.head_epoch
    assert head is not None
    copy = case.store.get(case.path(head))
    case.flip(head)
    view = case.log.view()
    assert view.head_is_lost and [each.slot for each in view.damage] == [head]
    assert verify(case.store, "w").damage[0].epochs == (head,)
    case.store.put(case.path(head), copy)
    assert case.log.view().damage == () and case.log.view().head_epoch == head, "a copy that is put back is seen"
    assert fallen_back(case, view) == [head]


def fallen_back(case: Case, view: LogView) -> list[int]:
    """What a start would skip."""
    decision = resolve(view, case.world.leader._machine.shape, case.log.fault)
    assert isinstance(decision, FallBack)
    return [epoch for epoch, _ in decision.skipped]


def test_a_retained_manifest_below_the_base_that_is_lost_is_skipped_and_named(case: Case) -> None:
    case.sum_up()
    head = case.view.head_epoch
    assert head is not None
    case.store.delete([case.path(head)])
    assert "missing" in case.log.view().damage[0].why
    assert fallen_back(case, case.log.view()) == [head]


@pytest.mark.parametrize("back", [1, 2])
def test_a_slot_that_is_missing_after_the_base_is_noticed(case: Case, back: int) -> None:
    newest = case.view.next_slot - 1
    assert newest - back > case.bases()[-1]
    case.store.delete([case.path(newest - back)])
    with pytest.raises(CorruptDataError, match=f"expected slot {newest - back}"):
        case.log.view()


@pytest.mark.parametrize("back", [0, 1, 2])
def test_a_restore_of_an_epoch_below_and_above_the_base(case: Case, back: int) -> None:
    case.sum_up()
    case.commit(case.view.next_slot)
    epoch = [m.epoch for m in case.view.restorables()][back]
    case.finish(restore=epoch)
    assert case.world.leader.restored_from == epoch
    assert epoch in [e.parent for e in case.log.read() if isinstance(e, Restore)] or not back


def once(case: Case, verb: str, act: Callable[[], None]) -> None:
    """Before the next request of this kind, something happens."""

    def before(asked: str, path: str) -> None:
        if asked == verb and "/log" in path:
            case.store.before = lambda verb, path: None
            act()

    case.store.before = before


def test_a_reader_begins_again_if_what_it_was_told_of_is_trimmed_meanwhile(case: Case) -> None:
    once(case, "get", lambda: case.grow(case.view.next_slot + 40))
    assert state(case.log.view()) == state(folded(case.history))
    once(case, "get", lambda: case.grow(case.view.next_slot + 40))
    assert case.log.read()[-1].slot == case.view.next_slot - 1


def test_a_reader_is_not_deceived_by_a_takeover_in_a_slot_that_was_trimmed(case: Case) -> None:
    """It listed a commit there. A candidate that slept has taken the slot since; that takeover does not count."""
    newest, case.trimmed = case.view.next_slot - 1, False

    def sleeper_wakes() -> None:
        case.grow(newest + 60)
        case.store.delete([case.path(newest)])  # the trim has come so far, in no order
        assert case.log.create(Takeover(slot=newest, term=newest, write_id="sleeper/1", leader="sleeper")) is None

    once(case, "get", sleeper_wakes)
    assert state(case.log.view()) == state(folded(case.history))
    case.finish()


def test_a_log_that_never_stands_still_is_not_read_for_ever(case: Case) -> None:
    def commit_once() -> None:
        case.commit(case.view.next_slot)
        once(case, "list", lambda: once(case, "get", commit_once))

    commit_once()
    once(case, "get", commit_once)
    with pytest.raises(RetryableError, match="faster than it can be read"):
        case.log.view()


# -- is it the last? ---------------------------------------------------------------------------------------------------


def test_the_last_entry_is_found_to_be_the_last(case: Case) -> None:
    assert case.log.check(case.view.next_slot - 1) == Last()
    assert isinstance(case.log.check(case.view.next_slot), Unknown), "our own entry is not listed yet"
    case.store.fails.add("w/log")
    assert isinstance(case.log.check(case.view.next_slot - 1), Unknown)


def test_whoever_leads_now_is_named(case: Case) -> None:
    slot = case.view.next_slot
    new = Takeover(slot=slot, term=slot, write_id="n/1", leader="new", host="there", pid=7, wall_ms=5)
    case.put(new)
    case.grow(slot + 40)
    assert case.log.check(slot - 1) == Followed(new)
    case.flip(slot)
    assert case.log.check(slot - 1) == Followed(None)


# -- trimming ----------------------------------------------------------------------------------------------------------


def test_takeovers_and_what_cannot_be_read_stay(case: Case) -> None:
    case.store.put(case.path(3), b"gone")
    case.grow(200)
    kept = {entry.slot: entry for entry in case.log.read()}
    assert isinstance(kept[0], Takeover) and isinstance(kept[3], Damaged)
    assert {slot for slot, entry in kept.items() if slot < case.bases()[0]} <= {
        *(slot for slot, entry in kept.items() if isinstance(entry, Takeover | Damaged)),
        *case.view.bases[0].needed,
        *case.view.bases[1].needed,
    }


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.LOST_ANSWER])
def test_a_trim_that_breaks_off_anywhere_goes_on_the_next_time(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logstore, "TRIM_AT_ONCE", 3)
    case = Case(60, trimmed=False)
    whole, breaks = state(folded(case.history)), 0
    while True:
        faulty = FaultyStore(case.store)
        faulty.fail_next("delete", fault)
        try:
            if LogStore(faulty, "w").trim_as_allowed() == 0:
                break
        except RetryableError:
            breaks += 1
            if fault is Fault.UNAVAILABLE:  # it came to two of them, in no order
                case.store.delete([case.path(slot) for slot in sorted(doomed(case) & set(case.log.slots()))[-2:]])
        assert state(case.log.view()) == whole
    assert breaks > 3 and len(case.log.slots()) < 35
    case.finish()


def doomed(case: Case) -> set[int]:
    older, newer = [e for e in case.history if isinstance(e, Base)][-2:]
    kept = {*older.needed, *newer.needed, *(e.slot for e in case.history if isinstance(e, Takeover))}
    return {slot for slot in range(older.slot) if slot not in kept}


def test_slots_are_deleted_in_bounded_batches(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logstore, "TRIM_AT_ONCE", 4)
    case.trimmed = False
    case.grow(120)
    case.store.taken()
    deleted = case.log.trim_as_allowed()
    requests = [paths for verb, paths in case.store.taken() if verb == "delete"]
    assert deleted > 20 and len(requests) == -(-deleted // 4) and all(paths.count("log/") <= 4 for paths in requests)


# -- tidegate gc -------------------------------------------------------------------------------------------------------


def test_gc_trims_what_a_leader_left_behind() -> None:
    case = Case(60, trimmed=False)
    assert collect(case.store, "w", 2, dry_run=True).entries > 20 and len(case.log.slots()) == 60
    done = collect(case.store, "w", 2)
    assert done.entries > 20 and len(case.log.slots()) == 60 - done.entries
    assert collect(case.store, "w", 2).entries == 0
    assert state(case.log.view()) == state(folded(case.history))
    assert verify(case.store, "w").damage == ()
    case.finish()


def test_gc_beside_a_live_leader_takes_nothing_away_from_it() -> None:
    case = Case(seed=5)
    for _ in range(16):
        before = case.world.leader._outcomes.committed
        case.world.until(lambda before=before: case.world.leader._outcomes.committed >= before + 9)  # type: ignore[misc]
        collect(case.store, "w", 2)
    assert len(case.bases()) == 2
    case.source.allow()
    case.world.finish()
    assert case.sink.rows() == rows_of(case.source.table)


def test_collecting_looks_again_if_the_job_has_committed_meanwhile(case: Case) -> None:
    def before(verb: str, path: str) -> None:
        if (verb, path) == ("list", "w/checkpoints"):
            case.store.before = lambda verb, path: None
            case.commit(case.view.next_slot)

    case.store.before = before
    newest = case.view.next_slot
    assert newest in collect(case.store, "w", 2).kept_epochs


# -- a leader ----------------------------------------------------------------------------------------------------------


def test_a_leader_keeps_its_log_short_and_the_next_one_goes_on_from_it() -> None:
    case = Case(seed=3)
    case.world.until(lambda: case.world.leader._outcomes.committed >= 3 * EVERY)
    assert len(case.log.slots()) < 2 * EVERY + 10 and len(case.bases()) == 2
    case.world.kill_leader()
    case.world.lead()
    case.source.allow()
    case.world.finish()
    assert case.sink.rows() == rows_of(case.source.table)


def test_a_trim_that_fails_is_only_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    case = Case()
    case.store.fails.add("get_range")
    with caplog.at_level(logging.WARNING, "tidegate"):
        case.world.until(lambda: "garbage was left for the next time: 503" in caplog.text)
    case.store.fails.clear()
    case.source.allow()
    case.world.finish()
    assert case.sink.rows() == rows_of(case.source.table)


def test_a_log_of_an_older_version_is_summed_up_by_the_next_start() -> None:
    """It has no base, thousands of entries, takeovers without a host, and a summary beside it that nobody reads."""
    case = Case(3)
    while case.view.next_slot < 3 * EVERY:
        case.commit(case.view.next_slot)
    case.store.put("w/_summary", b"{}")
    case.world.lead()
    case.world.until(lambda: len(case.world.leader._machine.log.bases) == 2)
    case.world.until(lambda: any(verb == "delete" and "/log/" in paths for verb, paths in case.store.requests))
    assert len(case.log.slots()) < 2 * EVERY
    case.source.allow()
    case.world.finish()
    assert case.sink.rows() == rows_of(case.source.table)


def test_with_real_threads_and_files_the_log_stays_short(jobs: Jobs) -> None:
    source, sink = GatedSource(events(2_000), allowed=0), MemorySink()
    job = jobs.start(plain(source, sink), 1)
    for _ in range(2 * EVERY + 20):
        source.allow(5)
        job.checkpoint()
    job.stop()
    log = LogStore(open_store(jobs.store), "w")
    collect(log.store, "w", 1)
    assert len(log.slots()) < 2 * EVERY
    source = GatedSource(source.table)
    again = jobs.start(plain(source, sink), 1)
    assert again.await_termination(20)
    assert sink.rows() == rows_of(source.table)
