"""What the tests of the command line share."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import dedent

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def pipeline_file(tmp_path: Path) -> Path:
    """A user's file with two pipelines over a little data."""
    folder = tmp_path / "data"
    folder.mkdir()
    rows = {"ts": [0, 5_000, 12_000], "key": [1, 2, 1], "value": [1.0, 2.0, 4.0], "kind": [1, 1, 0]}
    pq.write_table(pa.table(rows), folder / "part-0.parquet")
    path = tmp_path / "bids.py"
    path.write_text(
        dedent(f"""
        import tidegate as tg

        bids = tg.read_parquet({str(folder)!r}, event_time="ts")
        per_key = bids.key_by("key").window(tg.tumbling("10s")).aggregate(n=tg.count())
        pipeline = tg.Pipeline("bids", per_key.write_parquet({str(tmp_path / "out")!r}))
        other = tg.Pipeline("other", bids.write_parquet({str(tmp_path / "all")!r}))
        number = 7
        """)
    )
    return path
