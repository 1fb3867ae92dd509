"""What docs/proof.md and docs/operations.md name exists: every file, every test, and the numbers that are stated."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent
PAGE = (TESTS.parent / "docs" / "proof.md").read_text()
NAMED = sorted(set(re.findall(r"`([\w./-]+\.(?:py|txt)(?:::\w+)?)`", PAGE)))


def functions_of(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


OPERATIONS = (TESTS.parent / "docs" / "operations.md").read_text()
SHOWN = sorted(set(re.findall(r"`([\w./-]+\.py(?:::\w+)?)`", OPERATIONS)))


@pytest.mark.parametrize("name", sorted({*NAMED, *SHOWN}))
def test_what_the_pages_name_exists(name: str) -> None:
    path, _, test = name.partition("::")
    assert (TESTS / path).is_file()
    assert not test or test in functions_of(TESTS / path)


def test_every_fault_has_a_test() -> None:
    rows = [line for line in OPERATIONS.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 20 and all(".py" in row.rpartition(" | ")[2] for row in rows)


def test_every_scenario_is_on_the_page() -> None:
    files = {f"scenarios/{path.name}" for path in (TESTS / "scenarios").glob("*.txt")}
    assert files == {name for name in NAMED if name.endswith(".txt")}


def test_every_invariant_and_every_schedule_has_a_row() -> None:
    first = re.findall(r"^\| (I?\d+) \|", PAGE, re.MULTILINE)
    assert first == [f"I{n}" for n in range(1, 13)] + [str(n) for n in range(1, 21)]


def test_the_numbers_on_the_page_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(TESTS / "core"), *sys.path])
    import systems
    import test_align_mutants
    import test_coordinate_mutants

    whole = [system for system in systems.SYSTEMS if system.depth_max is None]
    assert f"{len(systems.SYSTEMS)} systems of one to three inputs" in PAGE
    assert f"{len(whole)} systems are searched completely" in PAGE
    for system in systems.SYSTEMS:
        assert system.depth_max is None or f'"{system.name}" to depth {system.depth_max}' in PAGE
    assert f"{len(test_align_mutants.MUTANTS)} wrong variants" in PAGE
    assert f"{len(test_coordinate_mutants.MUTANTS)} of coordination" in PAGE
