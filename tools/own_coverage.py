"""How much of each module of the core its own tests reach: lines and branches, by ``tests/core/test_<module>*.py`` alone.

All tests of the core run once, and each test file counts under its own name. What runs at import counts for everyone. Searches
and mutants are left out: the first reach everything without looking at it, the second run code that is wrong on purpose.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import coverage
import pytest

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "src" / "tidegate" / "core"
TESTS = ROOT / "tests" / "core"
LEFT_OUT = ("test_explorer.py", "test_align_mutants.py", "test_coordinate_mutants.py", "test_coordinate_machine.py")


class ByFile:
    """A plugin that tells the measurement which test file is at work."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self._measured = measured

    def pytest_collectstart(self, collector: pytest.Collector) -> None:
        if isinstance(collector, pytest.Module):
            self._measured.switch_context(collector.path.stem)

    def pytest_runtest_logstart(self, location: tuple[str, int | None, str]) -> None:
        self._measured.switch_context(Path(location[0]).stem)


def modules() -> list[str]:
    """The core's modules by name."""
    return sorted(_paths())


def _paths() -> dict[str, Path]:
    """Where each is. A test file is found by the module's name, with its package before it where two packages have the name."""
    paths = [path for path in CORE.rglob("*.py") if path.stem != "__init__"]
    counts = Counter(path.stem for path in paths)
    return {path.stem if counts[path.stem] == 1 else f"{path.parent.name}_{path.stem}": path for path in paths}


def measure() -> dict[str, dict[str, Any]]:
    """Run the tests; for each module what its own reach, as coverage reports it."""
    measured = coverage.Coverage(data_file=None, branch=True, include=[f"{CORE}/*"], config_file=False)
    os.environ["HYPOTHESIS_PROFILE"] = "glance"
    measured.start()
    for path in _paths().values():
        importlib.import_module(".".join(path.relative_to(ROOT / "src").with_suffix("").parts))
    left_out = [f"--ignore={TESTS / name}" for name in LEFT_OUT]
    code = pytest.main([str(TESTS), "-q", "-p", "no:cacheprovider", *left_out], plugins=[ByFile(measured)])
    measured.stop()
    if code != pytest.ExitCode.OK:
        raise SystemExit(f"the tests of the core fail exit_code={code}")
    return {name: _own(measured, name) for name in modules()}


def _own(measured: coverage.Coverage, name: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        measured.json_report([str(_paths()[name])], outfile=str(report), contexts=["^$", f"^test_{name}(_|$)"])
        (found,) = json.loads(report.read_text())["files"].values()
    return dict(found)


def main() -> None:
    """Print what is missing; fail if anything is."""
    short = False
    for name, found in measure().items():
        missing = found["missing_lines"], found["missing_branches"]
        short |= any(missing)
        print(f"{name:<12} {found['summary']['percent_covered']:6.1f} %  lines {missing[0]} branches {missing[1]}")
    sys.exit(short)


if __name__ == "__main__":
    main()
