"""``state``, ``verify``, ``gc`` and ``doctor`` on stores that a real job wrote."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

import tidegate as tg
from tidegate.api.job import Job
from tidegate.cli.main import main
from tidegate.core.checkpoint.manifest import CheckpointManifest
from tidegate.core.log.paths import JobPaths
from tidegate.runtime.inspect import find
from tidegate.runtime.local import ThreadGang
from tidegate.runtime.logstore import LogStore
from tidegate.runtime.start import JobOptions, launch_job
from tidegate.store.open import open_store

KEYS = 20_000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with several checkpoints whose state is too large to be inline."""
    root = tmp_path_factory.mktemp("made")
    rows = tg.generate(keys=KEYS, splits=2, event_rate=1)
    sums = rows.key_by("key").window(tg.tumbling("10000h")).aggregate(n=tg.count()).named("per_key")
    pipeline = tg.Pipeline("job", sums.write_parquet(root / "out"))
    checkpoint = tg.CheckpointConfig(interval="1h", retain=4)
    options = JobOptions(parallelism=2, store=str(root / "store"), checkpoint=checkpoint)
    job = Job(launch_job(pipeline.physical(2), ThreadGang(2), options))
    while job.metrics()["rows_in"] < 50_000:
        time.sleep(0.01)
    for _ in range(3):
        job.checkpoint()
    job.stop()
    return root / "store"


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    import shutil

    return Path(shutil.copytree(made, tmp_path / "store"))


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    code = main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def manifests(store: Path) -> list[CheckpointManifest]:
    return list(LogStore(open_store(store), "job").view().retained())


def test_state_shows_rows_and_how_many_more_there_are(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, document = told(capsys, "state", str(store), "per_key", "--limit", "3")
    assert code == 0 and document["rows"] == KEYS
    assert list(document["columns"]) == ["window_start", "key", "n"]  # type: ignore[call-overload]
    assert len(document["state"]) == 3  # type: ignore[arg-type]
    assert main(["state", str(store), "per_key"]) == 0
    text = capsys.readouterr().out
    assert "window start" in text and f"{KEYS - 20} more" in text


def test_state_of_an_unknown_operator_names_those_there_are(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["state", str(store), "nope"]) == 2
    assert "there are: per_key" in capsys.readouterr().err


def test_a_sound_store_is_said_to_be_sound(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, document = told(capsys, "verify", str(store))
    assert code == 0 and document["sound"] is True
    assert main(["verify", str(store)]) == 0
    assert "all sound" in capsys.readouterr().out


def test_one_flipped_bit_in_any_object_is_found_and_named(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needed = sorted({path for manifest in manifests(store) for path in manifest.object_paths()})
    logs = [f"job/log/{path.name}" for path in sorted((store / "job" / "log").iterdir())]
    assert needed and logs
    for path in [*needed, *logs]:
        file = store / path
        sound = file.read_bytes()
        damaged = bytearray(sound)
        damaged[len(damaged) // 3] ^= 1
        file.write_bytes(damaged)
        code, document = told(capsys, "verify", str(store))
        assert code == 1
        assert [each["path"] for each in document["jobs"][0]["damage"]] == [path]
        file.write_bytes(sound)


def test_a_missing_object_and_a_broken_log_entry_are_named(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = sorted(manifests(store)[-1].object_paths())[0]
    kept = (store / path).read_bytes()
    (store / path).unlink()
    code, document = told(capsys, "verify", str(store))
    damage = document["jobs"][0]["damage"]
    assert code == 1 and damage[0]["path"] == path and damage[0]["what"] == "it is missing" and damage[0]["epochs"]
    (store / path).write_bytes(kept)
    entry = sorted((store / "job" / "log").iterdir())[-1]
    entry.write_bytes(b"{")
    assert main(["verify", str(store)]) == 1
    assert entry.name in capsys.readouterr().out


def test_gc_deletes_only_what_nobody_needs(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = manifests(store)
    assert len(before) >= 3
    code, planned = told(capsys, "gc", str(store), "--retain", "1", "--dry-run")
    assert code == 0
    objects = planned["jobs"][0]["objects"]
    everything = {path for manifest in before for path in manifest.object_paths()}
    assert all((store / path).exists() for path in everything), "a dry run deletes nothing"
    code, document = told(capsys, "gc", str(store), "--retain", "1")
    assert code == 0 and document["jobs"][0]["objects"] == objects
    assert document["jobs"][0]["kept"] == [before[-1].epoch]
    assert all((store / path).exists() for path in before[-1].object_paths())
    gone = everything - set(before[-1].object_paths())
    assert not any((store / path).exists() for path in gone)
    assert told(capsys, "verify", str(store))[0] == 0, "what was given up is not damage"
    assert find(store).manifest.epoch == before[-1].epoch
    _, listed = told(capsys, "checkpoints", str(store))
    rows = listed["jobs"][0]["checkpoints"]
    assert [row["epoch"] for row in rows if row["restorable"]] == [before[-1].epoch]
    assert main(["state", str(store), "per_key"]) == 0


@pytest.mark.parametrize("text", [b"?", b'{"kind":"commit","slot":'])
def test_gc_is_refused_while_the_head_is_hidden_by_damage(store: Path, capsys: pytest.CaptureFixture[str], text: bytes) -> None:
    assert main(["gc", str(store), "--retain", "0"]) == 2
    assert main(["gc", str(store), "--retain", "1", "--job", "nope"]) == 2
    sorted((store / "job" / "log").iterdir())[-1].write_bytes(text)
    before = sorted(path for path in store.rglob("*") if path.is_file())
    assert main(["gc", str(store), "--retain", "1"]) == 2
    assert "log is damaged" in capsys.readouterr().err
    assert sorted(path for path in store.rglob("*") if path.is_file()) == before


def test_gc_beside_older_damage_keeps_what_the_others_need(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = manifests(store)
    file = store / JobPaths("job").log_entry(before[0].epoch)
    file.write_bytes(file.read_bytes()[:-1])
    code, document = told(capsys, "gc", str(store), "--retain", "2")
    assert code == 0 and document["jobs"][0]["kept"] == [m.epoch for m in before[-2:]]
    assert all((store / path).exists() for manifest in before[-2:] for path in manifest.object_paths())
    assert file.exists()
    code, document = told(capsys, "verify", str(store))
    damage = document["jobs"][0]["damage"]
    assert [(each["path"], each["epochs"]) for each in damage] == [(str(file.relative_to(store)), [before[0].epoch])]


@pytest.mark.parametrize("verb", [["verify"], ["gc", "--retain", "2"], ["state"]])
def test_a_store_that_is_not_there_is_a_wrong_call(tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: list[str]) -> None:
    name, *rest = verb
    operator = ["per_key"] if name == "state" else []
    assert main([name, str(tmp_path / "nothing"), *operator, *rest]) == 2
    assert "no such directory" in capsys.readouterr().err


def test_doctor_says_what_is_fine_and_what_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, document = told(capsys, "doctor", "--store", str(tmp_path / "store"))
    checks = {each["check"]: each for each in document["checks"]}  # type: ignore[attr-defined]
    assert code == (0 if document["sound"] else 1)
    assert checks["pyspark"]["state"] == checks["store"]["state"] == checks["ports"]["state"] == "ok"
    (tmp_path / "file").touch()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("tidegate.spark.session.CHECKOUT", tmp_path)
    code, document = told(capsys, "doctor", "--store", str(tmp_path / "file" / "store"))
    checks = {each["check"]: each for each in document["checks"]}  # type: ignore[attr-defined]
    assert code == 1 and document["sound"] is False
    assert checks["store"]["state"] == checks["java"]["state"] == "wrong"
    assert checks["java"]["advice"] and checks["store"]["advice"]
