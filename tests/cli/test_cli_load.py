"""Getting the pipeline out of a user's file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tidegate.cli.load import load_for_spark, load_pipeline, split_target
from tidegate.errors import InvalidUseError


def test_the_name_is_pipeline_unless_another_is_chosen(pipeline_file: Path) -> None:
    assert load_pipeline(str(pipeline_file)).name == "bids"
    assert load_pipeline(f"{pipeline_file}:other").name == "other"


def test_a_colon_in_the_files_own_name_is_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "a:b"
    path.write_text("")
    assert split_target(str(path)) == (path, "pipeline")
    assert split_target(f"{path}:c") == (path, "c")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("x = 1", "does not define `pipeline`"),
        ("pipeline = 7", "`pipeline` is a int, not a tg.Pipeline"),
        ("x = 1\n1 / 0", r"ZeroDivisionError: division by zero .* line=2"),
        ("def broken(:", r"SyntaxError.* line=1"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import tidegate as tg\ntg.read_parquet('/nowhere')", "/nowhere"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_one_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(InvalidUseError, match=sentence) as caught:
        load_pipeline(str(path))
    assert "\n" not in str(caught.value)


def test_a_file_may_import_its_neighbours(pipeline_file: Path) -> None:
    (pipeline_file.parent / "neighbour_of_bids.py").write_text("SIZE = '10s'")
    pipeline_file.write_text("from neighbour_of_bids import SIZE\n" + pipeline_file.read_text())
    assert load_pipeline(str(pipeline_file)).name == "bids"


def test_functions_of_the_file_travel_without_it(pipeline_file: Path) -> None:
    from pyspark import cloudpickle

    text = "limit = 3\ndef double(batch):\n    return batch * limit\n"
    pipeline_file.write_text(pipeline_file.read_text() + text + "pipeline.function = double\n")
    function = load_pipeline(str(pipeline_file)).function  # type: ignore[attr-defined]
    sent = cloudpickle.dumps(function)
    assert str(pipeline_file.stem).encode() + b".double" not in sent
    assert cloudpickle.loads(sent)(2) == 6


def test_a_session_that_the_file_makes_would_be_at_the_asked_master_and_run_this_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYSPARK_PYTHON", "PYSPARK_SUBMIT_ARGS"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "own.py"
    path.write_text(
        "import os\nimport tidegate as tg\n"
        "pipeline = tg.Pipeline('p', tg.generate(rows=1).collect())\n"
        "pipeline.seen = [os.environ[name] for name in ('PYSPARK_PYTHON', 'PYSPARK_SUBMIT_ARGS')]\n"
    )
    python, options = load_for_spark(str(path), "local[7]").seen  # type: ignore[attr-defined]
    assert python == sys.executable
    assert options.startswith("--master 'local[7]'") and options.endswith(" pyspark-shell")
    assert "PYSPARK_SUBMIT_ARGS" not in os.environ, "it was for the file's session only"
