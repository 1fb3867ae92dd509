"""The verbs that read a store: what they find, what they say about broken ones, and that they change nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from stored import commit, manifest, restore, takeover, write_log

from tidegate.cli.inventory import read_jobs
from tidegate.cli.main import main
from tidegate.core.log.codec import seal
from tidegate.core.log.entries import LogEntry
from tidegate.core.log.paths import JobPaths
from tidegate.core.log.view import encode_entry
from tidegate.errors import CorruptDataError, InvalidUseError


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two jobs: `bids` went back from epoch 3 to 1 and on to 5; `trades` has one savepoint and ended."""
    root = tmp_path / "store"
    bids: list[LogEntry] = [
        takeover(),
        commit("bids", 1, None),
        commit("bids", 2, 1),
        commit("bids", 3, 2),
        restore(4, 1),
        commit("bids", 5, 1, gang=4),
    ]
    write_log(root, "bids", bids)
    final = commit("trades", 2, 1, final=True, savepoint=None)
    write_log(root, "trades", [takeover(), commit("trades", 1, None, savepoint="before"), final])
    return root


def answer(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main([*argv, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_checkpoints_lists_every_job(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = answer(capsys, "checkpoints", str(store))
    bids, trades = document["jobs"]
    assert (bids["job"], bids["head"], bids["gang"]) == ("bids", 5, 4)
    assert [(c["epoch"], c["parent"], c["restorable"]) for c in bids["checkpoints"]] == [
        (1, None, True),
        (2, 1, False),
        (3, 2, False),
        (5, 1, True),
    ]
    assert [c["kind"] for c in trades["checkpoints"]] == ["savepoint", "final"]
    assert {(c["duration_ms"], c["bytes"]) for c in bids["checkpoints"]} == {(40, 2_048)}


def test_a_file_url_and_a_path_name_the_same_store(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = answer(capsys, "checkpoints", str(store))["jobs"]
    assert answer(capsys, "checkpoints", store.as_uri())["jobs"] == one


def test_one_job_can_be_picked(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = answer(capsys, "checkpoints", str(store), "--job", "trades")
    assert [job["job"] for job in document["jobs"]] == ["trades"]


def test_people_get_a_table_per_job(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoints", str(store)]) == 0
    printed = capsys.readouterr().out
    assert "job bids: next start from epoch 5" in printed
    assert "job trades: next start from epoch 2" in printed
    assert "2023-11-14 22:13:21 UTC" in printed
    assert "savepoint" in printed


def test_a_job_without_checkpoints_starts_from_the_beginning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_log(tmp_path / "store", "young", [takeover()])
    assert main(["checkpoints", str(tmp_path / "store")]) == 0
    assert capsys.readouterr().out == "job young: next start from the beginning\n"


def test_reading_changes_nothing(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in sorted(store.rglob("*"))}
    answer(capsys, "checkpoints", str(store))
    answer(capsys, "show", str(store), "5")
    assert {path: path.stat().st_mtime_ns for path in sorted(store.rglob("*"))} == before


def test_foreign_objects_are_left_alone(store: Path) -> None:
    (store / "notes.txt").write_text("mine")
    (store / "bids" / "log" / "backup.json").write_text("mine")
    (store / "-odd" / "log").mkdir(parents=True)
    (store / "-odd" / "log" / "00000000000000000000.json").write_text("mine")
    assert [log.job for log in read_jobs(str(store))] == ["bids", "trades"]


def test_an_empty_store_and_an_unknown_job_are_errors(store: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidUseError, match="nothing is stored there"):
        read_jobs(str(tmp_path / "empty"))
    with pytest.raises(InvalidUseError, match="nothing of job sales is stored there"):
        read_jobs(str(store), "sales")


@pytest.mark.parametrize("damage", [b"{", b'{"kind": "merge"}', b"\xff\xfe"])
def test_a_damaged_entry_is_named_and_the_others_are_shown(
    damage: bytes, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = JobPaths("bids").log_entry(2)
    (store / path).write_bytes(damage)
    assert main(["checkpoints", str(store)]) == 0
    assert path in capsys.readouterr().out
    bids = answer(capsys, "checkpoints", str(store), "--job", "bids")["jobs"][0]  # type: ignore[index]
    assert [each["path"] for each in bids["damaged"]] == [path]
    assert [each["epoch"] for each in bids["checkpoints"]] == [1, 3, 5]
    assert main(["show", str(store), "2", "--job", "bids"]) == 2
    assert path in capsys.readouterr().err


@pytest.mark.parametrize(
    ("slot", "flips", "words"),
    [
        (5, 1, "next start from epoch 1, because newer ones are damaged"),
        (5, 200, "next start from nowhere, because a damaged entry hides where to start"),
        (4, 1, "next start from epoch 5\n"),
    ],
)
def test_where_the_next_start_begins_is_told_past_damage(
    slot: int, flips: int, words: str, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = store / JobPaths("bids").log_entry(slot)
    data = bytearray(file.read_bytes())
    for index in range(flips):
        data[index + 3] ^= 1
    file.write_bytes(data)
    assert main(["checkpoints", str(store), "--job", "bids"]) == 0
    out = capsys.readouterr().out
    assert words in out and f"slot {slot}: the log entry is damaged" in out


def test_when_every_checkpoint_is_damaged_there_is_nowhere_to_start(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for slot in (1, 5):
        file = store / JobPaths("bids").log_entry(slot)
        file.write_bytes(file.read_bytes()[:-1])
    assert main(["checkpoints", str(store), "--job", "bids"]) == 0
    assert "next start from nowhere, because all are damaged" in capsys.readouterr().out
    assert main(["state", str(store), "per_key", "--job", "bids"]) == 2
    assert "every retained checkpoint is damaged" in capsys.readouterr().err


def test_an_entry_of_a_newer_version_is_named_and_exits_with_2(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = JobPaths("bids").log_entry(2)
    (store / path).write_bytes(seal(b'{"kind":"merge"}'))
    assert main(["checkpoints", str(store)]) == 2
    assert path in capsys.readouterr().err


def test_a_log_with_a_gap_is_refused(store: Path) -> None:
    (store / JobPaths("bids").log_entry(2)).unlink()
    with pytest.raises(CorruptDataError, match="expected slot 2"):
        read_jobs(str(store), "bids")


def test_show_tells_what_a_checkpoint_consists_of(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = answer(capsys, "show", str(store), "5")
    assert (document["job"], document["epoch"], document["parent"], document["restorable"]) == (
        "bids",
        5,
        1,
        True,
    )
    assert document["operators"] == [
        {"operator": "per_key", "subtask": 0, "runs": 2, "rows": 6, "bytes": 103, "meta": {"late_rows": 3}}
    ]
    assert document["sources"] == [{"operator": "bids", "subtask": 0, "state": {"file": 12}, "runs": []}]
    assert [entry["committable"] for entry in document["committables"]] == [{"files": ["part-1"]}]
    assert document["objects"][0]["size_bytes"] == 2_048


def test_show_speaks_to_people(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(store), "3"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("job bids, epoch 3: checkpoint, aligned, can no longer be restored\n")
    assert "per_key" in printed
    assert "2.0 KiB" in printed


def test_an_epoch_of_several_jobs_needs_the_jobs_name(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(store), "2"]) == 2
    assert "add --job with one of bids, trades" in capsys.readouterr().err
    assert answer(capsys, "show", str(store), "2", "--job", "trades")["kind"] == "final"


def test_an_epoch_that_is_not_there_is_answered_with_those_that_are(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(store), "4", "--job", "bids"]) == 2
    assert "there are: 1, 2, 3, 5 epoch=4" in capsys.readouterr().err


def test_many_epochs_are_given_as_a_range(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries: list[LogEntry] = [takeover(), *(commit("long", n, n - 1 or None) for n in range(1, 20))]
    write_log(tmp_path / "store", "long", entries)
    assert main(["show", str(tmp_path / "store"), "77"]) == 2
    assert "there are: 1 to 19 epoch=77" in capsys.readouterr().err


def test_the_samples_are_what_a_leader_writes() -> None:
    assert manifest("bids", 1, None).from_json(manifest("bids", 1, None).to_json(), "p").epoch == 1
    assert b'"takeover"' in encode_entry(takeover())
