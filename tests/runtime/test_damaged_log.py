"""One flipped bit in an entry of the log of a real job: the next start goes on exactly or says why not, and verify names the
file. Which bit it is makes no difference to what is read, so hundreds are read and some are started from."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pytest
from runtime_jobs import GatedSource, Jobs, MemorySink, events, rows_of, until

import tidegate as tg
from tidegate.api.job import Job
from tidegate.core.log.paths import JobPaths
from tidegate.core.log.view import Commit, Damaged, Restore, Takeover, read_entry
from tidegate.errors import InvalidUseError
from tidegate.runtime.logstore import LogStore
from tidegate.runtime.soundness import verify
from tidegate.store.open import open_store

ROWS = 9_000
STEP = 1_500
TABLE = events(ROWS, keys=ROWS)
PATHS = JobPaths("w")


def pipeline(source: GatedSource, out: Path) -> tg.Pipeline:
    """Rows as they come, and all of them counted at the end: state that is too large to be inline."""
    rows = tg.from_source(source)
    counted = rows.key_by("key").window(tg.tumbling("10h")).aggregate(n=tg.count(), total=tg.sum("value"))
    return tg.Pipeline("w", rows.write_parquet(out / "rows", publish_every="0s"), counted.write_parquet(out / "counts"))


def read(out: Path, query: str) -> list[tuple[int, ...]]:
    return duckdb.connect().sql(query.format(out)).fetchall() if list(out.glob("*.parquet")) else []


def shown(path: Path) -> list[tuple[int, ...]]:
    return read(path / "out" / "rows", "select ts, key, value from '{}/*.parquet' order by all")


def check_exact(path: Path) -> None:
    assert shown(path) == rows_of(TABLE)
    counts = read(path / "out" / "counts", "select key, n, total from '{}/*.parquet' order by all")
    assert counts == sorted((key, 1, value) for _, key, value in rows_of(TABLE))


@dataclass(slots=True)
class Made:
    """A job that was stopped: its directory, and the rows that each of its epochs showed."""

    path: Path
    rows_at: dict[int, list[tuple[int, ...]]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Slots: takeover 0, commits 1, 2, takeover 3, restore 4, commits 5, 6. In ``restored`` also takeover 7 and restore 8."""
    jobs = Jobs(tmp_path_factory.mktemp("made"))
    done = Made(jobs.path, {})
    for _ in range(2):
        source = GatedSource(TABLE, allowed=0)
        job = jobs.start(pipeline(source, jobs.path / "out"), 2)
        for _ in range(2):
            goal, seen = source.emitted + STEP, (len(done.rows_at) + 1) * STEP
            source.allow(STEP)
            until(lambda source=source, goal=goal: source.emitted == goal)
            epoch = job.checkpoint()
            until(lambda seen=seen: len(shown(jobs.path)) == seen)
            done.rows_at[epoch] = shown(jobs.path)
        job.stop()
    kinds = [type(entry) for entry in jobs.log("w")]
    assert kinds == [Takeover, Commit, Commit, Takeover, Restore, Commit, Commit]
    assert all(manifest.objects for manifest in jobs.manifests("w")[-2:])
    shutil.copytree(jobs.path, jobs.path.parent / "restored")
    again = Jobs(jobs.path.parent / "restored")
    job = again.start(pipeline(GatedSource(TABLE, allowed=0), again.path / "out"), 2)
    until(lambda: job.status == "RUNNING")
    job.stop()
    assert [type(entry) for entry in again.log("w")][7:] == [Takeover, Restore]
    return done


@pytest.fixture
def copied(made: Made, tmp_path: Path) -> Jobs:
    shutil.copytree(made.path, tmp_path, dirs_exist_ok=True)
    return Jobs(tmp_path)


@pytest.fixture
def restored(made: Made, tmp_path: Path) -> Jobs:
    shutil.copytree(made.path.parent / "restored", tmp_path, dirs_exist_ok=True)
    return Jobs(tmp_path)


def flip(jobs: Jobs, slot: int, index: int, bit: int = 0) -> Path:
    file = Path(jobs.store) / PATHS.log_entry(slot)
    data = bytearray(file.read_bytes())
    data[index % len(data)] ^= 1 << bit
    file.write_bytes(data)
    return file


def finish(jobs: Jobs, **options: str) -> Job:
    job = jobs.start(pipeline(GatedSource(TABLE), jobs.path / "out"), 2, **options)  # type: ignore[arg-type]
    assert job.await_termination(20)
    return job


def check_named(jobs: Jobs, slot: int) -> None:
    """``verify`` names this entry, and nothing that is still needed is gone."""
    damage = verify(open_store(jobs.store), "w").damage
    assert [each.path for each in damage] == [PATHS.log_entry(slot)]


def test_a_flipped_bit_anywhere_in_an_entry_reads_the_same(made: Made) -> None:
    store = open_store(made.path / "store")
    for slot, entry in enumerate(LogStore(store, "w").read()):
        assert not isinstance(entry, Damaged)
        path = PATHS.log_entry(slot)
        data = bytearray(store.get(path))
        found = set()
        for index in {*range(100), *range(100, len(data), 1 + len(data) // 300), len(data) - 1}:
            for bit in range(8):
                data[index] ^= 1 << bit
                found.add(read_entry(bytes(data), path, slot))
                data[index] ^= 1 << bit
        (only,) = found
        assert isinstance(only, Damaged) and only.kind == entry.kind and path in only.why


@pytest.mark.parametrize("slot", [0, 1, 2, 3, 4, 5])
def test_older_damage_costs_nothing(copied: Jobs, slot: int, caplog: pytest.LogCaptureFixture) -> None:
    """Takeovers, the restore after which commits stand, commits that are not the newest, the newest's parent among them."""
    file = flip(copied, slot, 11)
    check_named(copied, slot)
    job = finish(copied)
    assert job.restored_from == 6 and job.skipped == ()
    assert file.name in caplog.text
    check_exact(copied.path)
    check_named(copied, slot)
    assert file.exists()


@pytest.mark.parametrize("index", [10, 2_000, -1], ids=["in the kind", "in the manifest", "in the seal"])
def test_a_damaged_newest_commit_is_skipped_and_its_rows_hidden(
    copied: Jobs, made: Made, index: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert shown(copied.path) == made.rows_at[6]
    file = flip(copied, 6, index, 5)
    (Path(copied.store) / PATHS.latest).write_bytes(b"\xff")  # a hint that nobody believes
    check_named(copied, 6)
    source = GatedSource(TABLE, allowed=0)
    job = copied.start(pipeline(source, copied.path / "out"), 2)
    until(lambda: job.status == "RUNNING")
    assert job.restored_from == 5
    ((epoch, why),) = job.skipped
    assert epoch == 6 and file.name in why and f"checkpoint skipped: {why}" in caplog.text
    assert shown(copied.path) == made.rows_at[5], "the rows of the damaged epoch are hidden"
    source.allow(700)
    until(lambda: source.emitted == 700)
    newer = job.checkpoint()
    job.stop()
    assert [m.epoch for m in copied.view("w").restorables()][:2] == [newer, 5] and newer > 6
    check_named(copied, 6)
    again = finish(copied)
    assert again.restored_from == newer and again.skipped == ()
    check_exact(copied.path)
    check_named(copied, 6)
    assert file.exists()


def test_a_fall_back_that_dies_before_it_commits_is_repeated(copied: Jobs, made: Made) -> None:
    flip(copied, 6, 50)
    for _ in range(2):
        job = copied.start(pipeline(GatedSource(TABLE, allowed=0), copied.path / "out"), 2)
        until(lambda job=job: job.status == "RUNNING")
        job.stop()
        assert job.restored_from == 5
        assert shown(copied.path) == made.rows_at[5]
    finish(copied)
    check_exact(copied.path)


def test_what_a_damaged_commit_left_staged_is_never_shown(copied: Jobs, made: Made) -> None:
    """The leader died between the manifest and the sinks: the rows still wait, and nobody knows whose they are."""
    for file in sorted((copied.path / "out" / "rows").glob("part-*.parquet")):
        manifest = copied.manifests("w")[-1]
        for entry in manifest.committables:
            for staged in entry.committable["files"]:  # type: ignore[attr-defined]
                if staged["final"] == file.name:
                    file.rename(file.parent / "_pending" / staged["pending"])
    assert shown(copied.path) == made.rows_at[5]
    flip(copied, 6, 300)
    finish(copied)
    check_exact(copied.path)


def test_a_damaged_commit_that_a_restore_started_from_is_skipped(restored: Jobs) -> None:
    flip(restored, 6, 77)
    job = finish(restored)
    assert job.restored_from == 5 and [epoch for epoch, _ in job.skipped] == [6]
    check_exact(restored.path)
    check_named(restored, 6)


def test_a_damaged_last_restore_is_refused_saying_what_to_do(restored: Jobs) -> None:
    file = flip(restored, 8, 20)
    check_named(restored, 8)
    before = sorted(path for path in restored.path.rglob("*") if path.is_file())
    for choice in ("latest", 5):
        with pytest.raises(InvalidUseError, match=rf"put a copy.*restore='none'.*{file.name}"):
            finish(restored, restore=choice)  # type: ignore[arg-type]
    assert sorted(path for path in restored.path.rglob("*") if path.is_file()) == before
    finish(restored, restore="none", overwrite=True)  # type: ignore[arg-type]
    check_exact(restored.path)
    check_named(restored, 8)


def test_a_damaged_last_takeover_costs_nothing(restored: Jobs) -> None:
    flip(restored, 7, 9)
    assert finish(restored).restored_from == 6
    check_exact(restored.path)


def test_when_every_commit_is_damaged_the_start_is_refused(copied: Jobs) -> None:
    for slot in (1, 2, 5, 6):
        flip(copied, slot, 40)
    with pytest.raises(InvalidUseError, match="every retained checkpoint is damaged"):
        finish(copied)
    finish(copied, restore="none", overwrite=True)  # type: ignore[arg-type]
    check_exact(copied.path)


def test_a_finished_jobs_damaged_last_commit_is_made_again(copied: Jobs) -> None:
    finish(copied)
    final = copied.manifests("w")[-1]
    assert final.final
    flip(copied, final.epoch, 500)
    job = finish(copied)
    assert job.restored_from == 6 and [epoch for epoch, _ in job.skipped] == [final.epoch]
    check_exact(copied.path)


def test_a_sink_that_hides_only_what_is_named_is_not_taken_back(jobs: Jobs) -> None:
    source, sink = GatedSource(events(2_000), allowed=500), MemorySink()
    plan = tg.Pipeline("w", tg.from_source(source).write(sink))
    job = jobs.start(plan, 1)
    until(lambda: source.emitted == 500)
    first = job.checkpoint()
    source.allow(100)
    until(lambda: source.emitted == 600)
    newer = job.checkpoint()
    until(lambda: newer in sink.epochs())
    job.stop()
    file = flip(jobs, newer, 99)
    with pytest.raises(InvalidUseError, match=rf"no manifest names.*{file.name}"):
        jobs.start(plan, 1)
    assert sink.epochs() == {first, newer}
