"""What Spark says when a job fails, in one line."""

from __future__ import annotations

import builtins
import re

from tidegate.core.failure.restart import FailureKind
from tidegate.errors import RetryableError
from tidegate.runtime.gang import Exit

_MISSING = re.compile(r"No module named '(tidegate|numpy|pyarrow|obstore|grpc|google)")
_RAISED = re.compile(r"^(?:tidegate\.errors\.)?(\w+(?:Error|Exception|Unreachable): .*)$", re.MULTILINE)


def reason(error: Exception) -> Exit:
    """The line of Spark's many that says what happened, and its kind: only here is that read from text, Spark has no other."""
    text = str(error).strip()
    if missing := _MISSING.search(text):
        return Exit(
            FailureKind.SETUP,
            f"ModuleNotFoundError: the executors' Python has no module {missing.group(1)!r}: install tidegate there, or set "
            "PYSPARK_PYTHON to a Python that has it",
        )
    if raised := _RAISED.findall(text):
        line = str(raised[-1])
        return Exit(_kind(line.partition(":")[0]), line)
    return Exit(FailureKind.LOST, text.splitlines()[0] if text else type(error).__name__)


def _kind(name: str) -> FailureKind:
    """Of what a task raised outside the node's loop: in Python's own words what may pass, else what will come again."""
    kind = getattr(builtins, name, None)
    passes = isinstance(kind, type) and issubclass(kind, OSError | MemoryError)
    return FailureKind.TRANSIENT if passes or name == RetryableError.__name__ else FailureKind.SETUP
