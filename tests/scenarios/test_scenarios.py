"""Every scenario file plays as it is written. See ``play`` for the form of the files and how to write them anew."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from play import play  # noqa: E402
from scenario_heads import Heads  # noqa: E402
from scenario_leaders import Leaders  # noqa: E402
from scenario_subtasks import Subtasks  # noqa: E402

WORLDS = {"subtasks": Subtasks, "leaders": Leaders, "heads": Heads}
FILES = sorted(HERE.glob("*.txt"))
ELSEWHERE = {13, 17}  # schedules of the store and of the runtime, where they have their tests
INVARIANT = re.compile(r"\bI([1-9]|1[0-2])\b")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_scenario_plays_as_written(path: Path) -> None:
    played = play(path, WORLDS)  # type: ignore[arg-type]
    if os.environ.get("TIDEGATE_REGENERATE") == "1":
        path.write_text(played)
    assert played == path.read_text()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_file_says_what_went_wrong_and_what_it_guards(path: Path) -> None:
    prose = [line for line in path.read_text().split("world ")[0].splitlines() if line]
    assert prose and all(line.startswith("# ") for line in prose)
    assert INVARIANT.search(" ".join(prose)), "no invariant is named"


def test_every_schedule_of_the_core_has_a_file() -> None:
    assert {int(path.name[:2]) for path in FILES} == set(range(1, 21)) - ELSEWHERE
