"""What Spark says when a job fails, in one line."""

from __future__ import annotations

import re

_MISSING = re.compile(r"No module named '(tidegate|numpy|pyarrow|obstore|grpc|google)")
_RAISED = re.compile(r"^(?:tidegate\.errors\.)?(\w+(?:Error|Exception|Unreachable): .*)$", re.MULTILINE)


def reason(error: Exception) -> str:
    """The one line of Spark's many that says what happened."""
    text = str(error).strip()
    if missing := _MISSING.search(text):
        return (
            f"ModuleNotFoundError: the executors' Python has no module {missing.group(1)!r}: install tidegate there, or set "
            "PYSPARK_PYTHON to a Python that has it"
        )
    if raised := _RAISED.findall(text):
        return str(raised[-1])
    return text.splitlines()[0] if text else type(error).__name__
