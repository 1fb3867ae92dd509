"""What a start reads of a log that has grown for a day: a summary, the slots that it names, and what came behind it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from runtime_jobs import GatedSource, Jobs, MemorySink, events, rows_of, until
from runtime_world import World

import tidegate as tg
from tidegate.core import lead
from tidegate.core.log import Commit, LogView, Restore, Takeover
from tidegate.errors import CorruptDataError, RetryableError
from tidegate.runtime.logstore import AT_ONCE, LogStore
from tidegate.runtime.soundness import collect, verify
from tidegate.store.open import open_store
from tidegate.testing.store import FaultyStore

ENTRIES = 5_000


class Counting:
    """Notes every request to a store, and hides what it is told to hide."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.requests: list[tuple[str, str]] = []
        self.hidden: dict[str, int] = {}
        self.fails: set[str] = set()
        self.on_list: Callable[[], None] = lambda: None
        self._lock = threading.Lock()

    def __getattr__(self, verb: str) -> Any:
        real = getattr(self._store, verb)
        return real if not callable(real) else lambda *args: self._ask(verb, real, *args)

    def _ask(self, verb: str, real: Any, *args: Any) -> Any:
        with self._lock:
            self.requests.append((verb, str(args[0])))
            if verb in ("put", "get") and args[0] in self.fails:
                raise RetryableError(f"503 path={args[0]}")
            if verb == "get" and self.hidden.get(args[0], 0) > 0:
                self.hidden[args[0]] -= 1
                raise FileNotFoundError(args[0])
        if (verb, str(args[0])) == ("list", "w/checkpoints"):
            self.on_list()
        return real(*args)

    def taken(self) -> list[tuple[str, str]]:
        """The requests since the last look."""
        seen, self.requests = self.requests, []
        return seen


def plain(source: GatedSource, sink: MemorySink) -> tg.Pipeline:
    return tg.Pipeline("w", tg.from_source(source).write(sink))


class Case:
    """A job that has committed a little, was killed, and has led for a day since."""

    def __init__(self, entries: int = 0, **options: Any) -> None:
        self.store: Any = Counting(open_store("memory://"))
        self.source, self.sink = GatedSource(events(2_000), rows_per_poll=10, allowed=600), MemorySink()
        self.world = World(plain(self.source, self.sink), 2, store=self.store, retain=3, **options)
        self.log = LogStore(self.store, "w")
        self.world.until(lambda: self.world.leader._committed >= 3)
        if entries:
            self.world.kill_leader()
            self.grow(entries)
        self.store.taken()

    def grow(self, entries: int) -> None:
        """Commit what the head has, again and again."""
        view = LogView(self.log.read())
        slot = term = view.next_slot
        self.log.create(Takeover(slot=slot, term=term, write_id="pad/0", leader="pad"))
        head = view.head
        assert head is not None
        for slot in range(term + 1, entries):
            number = (term << 32) + slot
            head = replace(head, epoch=slot, parent=head.epoch, gang=view.gang, term=term, checkpoint_id=number, committables=())
            head = replace(head, oldest_restorable=max(view.oldest_restorable, slot - 5))
            self.log.create(Commit(slot=slot, term=term, write_id=f"pad/{slot}", manifest=head))

    def sum_up(self, entries: int | None = None) -> None:
        summary = LogView(self.log.read()[:entries]).summary()
        assert summary is not None
        self.log.write_summary(summary)
        self.store.taken()

    def finish(self, **options: Any) -> None:
        self.world.lead(**options)
        self.source.allow()
        self.world.finish()
        assert self.sink.rows() == rows_of(self.source.table)


@pytest.fixture(scope="module")
def day() -> Case:
    case = Case(ENTRIES)
    case.sum_up()
    return case


@pytest.fixture
def case() -> Iterator[Case]:
    case = Case(40)
    case.sum_up(30)
    yield case
    case.world.close()


def state(view: LogView) -> tuple[object, ...]:
    return view.summary(), view.held(), view.damage, view.off_lineage(), list(view.lineage())


def whole(case: Case) -> LogView:
    return LogView(case.log.read())


def test_a_job_with_thousands_of_entries_starts_with_a_few_requests(day: Case) -> None:
    day.world.lead()
    requests = day.store.taken()
    assert len(requests) < 40 and not [path for verb, path in requests if verb == "list"]
    assert day.world.leader.restored_from == ENTRIES - 1
    day.finish()
    assert whole(day).next_slot > ENTRIES


@pytest.mark.parametrize("behind", [0, 1, AT_ONCE - 1, AT_ONCE, AT_ONCE + 1, 30])
def test_a_summary_gives_the_view_of_the_whole_log_however_old_it_is(case: Case, behind: int) -> None:
    case.sum_up(40 - behind)
    assert state(case.log.view()) == state(whole(case))


def test_a_deposed_leader_that_puts_its_summary_over_a_newer_one_does_no_harm(case: Case) -> None:
    old = LogView(case.log.read()[:20]).summary()
    assert old is not None
    case.world.lead()
    case.source.allow(300)
    case.world.until(lambda: case.world.leader._committed >= 3)
    case.log.write_summary(old)
    case.world.kill_leader()
    assert state(case.log.view()) == state(whole(case)) and whole(case).next_slot > 43
    case.finish()


def test_a_flipped_bit_in_the_summary_means_reading_everything(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    FaultyStore(case.store).flip_bit("w/_summary", 99)
    case.store.taken()
    assert state(case.log.view()) == state(whole(case))
    assert ("list", "w/log") in case.store.taken() and "checksum differs" in caplog.text
    case.finish()


def test_a_long_log_without_a_summary_is_read_whole_and_people_are_told(caplog: pytest.LogCaptureFixture) -> None:
    case = Case(lead.SUMMARY_EVERY + 5)
    case.log.view()
    assert "no summary" in caplog.text
    case.world.lead()
    case.world.until(lambda: ("put", "w/_summary") in case.store.requests)
    case.world.close()


@pytest.mark.parametrize("epoch", [34, 37, 38])
def test_a_restore_of_an_epoch_inside_and_behind_the_summarised_part(case: Case, epoch: int) -> None:
    case.sum_up(38)
    case.finish(restore=epoch)
    assert case.world.leader.restored_from == epoch
    assert next(e.parent for e in case.log.read()[40:] if isinstance(e, Restore)) == epoch


def test_a_restore_behind_the_summary_leaves_part_of_it_behind(case: Case) -> None:
    case.sum_up(38)
    term = whole(case).term
    assert term is not None
    case.log.create(Restore(slot=40, term=term, write_id="r", parent=35, reason="a node was lost"))
    assert state(case.log.view()) == state(whole(case)) and case.log.view().head_epoch == 35
    case.finish()
    assert case.world.leader.restored_from == 35


def _summary(case: Case, entries: int) -> Any:
    return LogView(case.log.read()[:entries]).summary()


# -- what does not fit -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slot", [26, 29, 35])
def test_damage_is_found_where_it_is_as_if_there_were_no_summary(case: Case, slot: int, caplog: pytest.LogCaptureFixture) -> None:
    """In a manifest that the summary names, in the last entry that it counts, and behind it."""
    path = case.log.paths.log_entry(slot)
    copy = case.store.get(path)
    FaultyStore(case.store).flip_bit(path, 5_000)
    damaged = case.log.view()
    assert state(damaged) == state(whole(case)) and [each.slot for each in damaged.damage] == [slot]
    assert ("its summary is of no use" in caplog.text) == (slot < 30)
    case.sum_up()
    case.store.taken()
    assert state(case.log.view()) == state(damaged), "a summary that knows of it will do"
    assert ("list", "w/log") not in case.store.taken()
    case.store.put(path, copy)
    assert case.log.view().damage == () and state(case.log.view()) == state(whole(case)), "a copy that is put back is seen"


def test_a_summary_of_another_log_is_not_believed(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    """Somebody removed the job and began it anew; a leader of the first one was still alive."""
    other = Case(50)
    case.log.write_summary(_summary(other, 50))
    assert state(case.log.view()) == state(whole(case)), "it counts more entries than there are"
    case.log.write_summary(replace(_summary(other, 50), next_slot=40, lineage=(), held=(), oldest_restorable=0))
    assert state(case.log.view()) == state(whole(case)) and caplog.text.count("of no use") == 2
    other.world.close()


@pytest.mark.parametrize("lost", [[30], [33], [37, 38], [38]])
def test_a_slot_that_is_missing_before_others_is_noticed(case: Case, lost: list[int]) -> None:
    case.store.delete([case.log.paths.log_entry(slot) for slot in lost])
    with pytest.raises(CorruptDataError, match=f"expected slot {lost[0]}"):
        case.log.view()


def test_a_slot_that_is_lost_and_no_longer_needed_is_left_to_verify(case: Case) -> None:
    before = state(case.log.view())
    case.store.delete([case.log.paths.log_entry(10)])
    assert state(case.log.view()) == before
    (damage,) = verify(case.store, "w").damage
    assert "expected slot 10" in damage.what


def test_an_entry_that_appears_between_two_looks_is_read(case: Case) -> None:
    case.store.hidden = {case.log.paths.log_entry(slot): 1 for slot in (30, 36)}
    view = case.log.view()
    assert not any(case.store.hidden.values()) and ("list", "w/log") not in case.store.taken()
    assert state(view) == state(whole(case)) and case.log.behind(40) == []


def test_a_store_that_does_not_answer_is_no_reason_to_read_everything(case: Case) -> None:
    case.store.fails.add("w/_summary")
    with pytest.raises(RetryableError):
        case.log.view()


def test_what_a_log_has_behind_a_slot_is_read_without_a_listing(case: Case) -> None:
    case.store.taken()
    assert [entry.slot for entry in case.log.behind(25)] == list(range(25, 40))
    assert case.log.begun() and not LogStore(case.store, "v").begun()
    assert not [path for verb, path in case.store.taken() if verb == "list"]


def test_collecting_needs_no_more_than_the_summary(case: Case) -> None:
    done = collect(case.store, "w", 2)
    assert done.kept_epochs == (38, 39) and ("list", "w/log") not in case.store.taken()


def test_collecting_looks_again_if_the_job_has_committed_meanwhile(case: Case) -> None:
    def commit_once() -> None:
        case.store.on_list = lambda: None
        case.grow(42)

    case.store.on_list = commit_once
    assert collect(case.store, "w", 2).kept_epochs == (39, 41)


# -- who writes it -----------------------------------------------------------------------------------------------------


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lead, "SUMMARY_EVERY", 4)


def test_a_leader_writes_summaries_and_the_next_one_starts_from_them(often: None) -> None:
    case = Case(seed=3)
    case.world.until(lambda: case.store.requests.count(("put", "w/_summary")) >= 3)
    case.world.kill_leader()
    case.store.taken()
    case.world.lead()
    assert ("list", "w/log") not in case.store.taken()
    case.source.allow()
    case.world.finish()
    assert case.sink.rows() == rows_of(case.source.table)


def test_a_summary_that_is_never_written_delays_nothing(often: None) -> None:
    case = Case()
    hints: Any = case.world.leading.threads.executor("hint")
    hints.run_one = lambda: None
    before = case.world.leader._committed
    case.world.until(lambda: case.world.leader._committed >= before + 10)
    assert ("put", "w/_summary") not in case.store.requests
    case.world.close()


def test_a_summary_that_cannot_be_written_is_only_a_warning(often: None, caplog: pytest.LogCaptureFixture) -> None:
    case = Case()
    case.store.fails.add("w/_summary")
    with caplog.at_level(logging.WARNING, "tidegate"):
        case.world.until(lambda: "summary of the log could not be written" in caplog.text)
    case.source.allow()
    case.world.finish()
    assert case.sink.rows() == rows_of(case.source.table)


def test_a_job_that_was_stopped_has_its_log_summed_up(jobs: Jobs) -> None:
    """With real threads and files."""
    source, sink = GatedSource(events(2_000), allowed=0), MemorySink()
    job = jobs.start(plain(source, sink), 1)
    for _ in range(lead.SUMMARY_AT_END):
        source.allow(50)
        job.checkpoint()
    job.stop()
    log = LogStore(open_store(jobs.store), "w")
    summary = log.recent().summary
    assert summary is not None and summary.next_slot == lead.SUMMARY_AT_END + 1
    source = GatedSource(source.table)
    again = jobs.start(plain(source, sink), 1)
    assert again.await_termination(20)
    until(lambda: sink.rows() == rows_of(source.table))
