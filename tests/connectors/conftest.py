from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

WriteFile = Callable[..., Path]


@pytest.fixture
def write_file(tmp_path: Path) -> WriteFile:
    """Writes a Parquet file below ``data``."""

    def write(name: str, table: pa.Table, **options: object) -> Path:
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, **options)
        return path

    return write


@pytest.fixture
def fresh_directory(tmp_path: Path) -> Callable[[], Path]:
    """Returns another directory that does not exist yet at every call."""
    numbers = count()
    return lambda: tmp_path / f"out-{next(numbers)}"
