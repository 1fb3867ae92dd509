"""tidegate: consistent checkpoints for continuous Python pipelines on Spark.

The public names, each imported on first use, so that importing tidegate is quick wherever only a part of it
is needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate.api.aggregates import count, count_distinct, first, last, max, mean, min, sum
    from tidegate.api.dataframe import from_dataframe
    from tidegate.api.pipeline import Pipeline
    from tidegate.api.sources import from_source, generate, read_parquet
    from tidegate.api.state import read_state
    from tidegate.api.stream import Output, Stream, col
    from tidegate.api.windows import session, sliding, tumbling
    from tidegate.core.checkpoint.config import CheckpointConfig, WalMode
    from tidegate.core.failure.problems import Problem
    from tidegate.errors import InvalidUseError, TidegateError
    from tidegate.plan.connector import Sink, Source
    from tidegate.plan.parameter import Parameter
    from tidegate.runtime.security import Tls

_MODULES = {
    "tidegate.api.aggregates": ("count", "count_distinct", "first", "last", "max", "mean", "min", "sum"),
    "tidegate.api.dataframe": ("from_dataframe",),
    "tidegate.api.pipeline": ("Pipeline",),
    "tidegate.api.sources": ("from_source", "generate", "read_parquet"),
    "tidegate.api.state": ("read_state",),
    "tidegate.api.stream": ("Output", "Stream", "col"),
    "tidegate.api.windows": ("session", "sliding", "tumbling"),
    "tidegate.core.checkpoint.config": ("CheckpointConfig", "WalMode"),
    "tidegate.core.failure.problems": ("Problem",),
    "tidegate.errors": ("InvalidUseError", "TidegateError"),
    "tidegate.plan.connector": ("Sink", "Source"),
    "tidegate.plan.parameter": ("Parameter",),
    "tidegate.runtime.security": ("Tls",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "CheckpointConfig",
    "InvalidUseError",
    "Output",
    "Parameter",
    "Pipeline",
    "Problem",
    "Sink",
    "Source",
    "Stream",
    "TidegateError",
    "Tls",
    "WalMode",
    "col",
    "count",
    "count_distinct",
    "first",
    "from_dataframe",
    "from_source",
    "generate",
    "last",
    "max",
    "mean",
    "min",
    "read_parquet",
    "read_state",
    "session",
    "sliding",
    "sum",
    "tumbling",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tidegate' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
