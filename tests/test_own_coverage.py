"""Each module of the core is reached to its last branch by its own test file, not by chance through another's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parent.parent / "tools" / "own_coverage.py"


@pytest.mark.slow
def test_every_core_module_is_covered_by_its_own_tests() -> None:
    """In a process of its own: modules must be imported while they are measured."""
    done = subprocess.run([sys.executable, str(TOOL)], capture_output=True, text=True, timeout=240, check=False)
    short = [line for line in done.stdout.splitlines() if "%" in line and "100.0 %" not in line]
    assert done.returncode == 0, "\n".join(short) or done.stdout[-2_000:] + done.stderr[-2_000:]
