"""Metrics as a job says them, for jobs that a test makes up."""

from __future__ import annotations

from types import UnionType
from typing import Any, cast, get_origin, get_type_hints

from tidegate.runtime.metrics import JobMetrics


def job_metrics(**known: Any) -> JobMetrics:
    """All of them; zero or nothing but for these."""
    hints = get_type_hints(JobMetrics)
    unknown = known.keys() - hints.keys()
    assert not unknown, f"there are no such metrics: {sorted(unknown)}"
    nothing = {name: None if isinstance(hint, UnionType) else (get_origin(hint) or hint)() for name, hint in hints.items()}
    return cast(JobMetrics, nothing | known)
