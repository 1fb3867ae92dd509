"""Offsets and committables come back from a manifest: whatever is in them, a connector takes it or raises our error."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from damage import damaged, json_values, with_wrong_parts
from tidegate.connectors.framespool import Chunk, FrameManifest, MicroBatch, StreamHead
from tidegate.connectors.generate import GenerateSource
from tidegate.connectors.parquet import ParquetDirectorySource, ParquetSource
from tidegate.connectors.parquet_sink import ParquetSink
from tidegate.connectors.staging import StagingDirectory, files_of
from tidegate.core.log.codec import decode, encode
from tidegate.errors import CorruptDataError, TidegateError
from tidegate.plan.connector import Source

SCHEMA = pa.schema([("ts", pa.int64()), ("n", pa.int64())])
numbers = st.integers(-(1 << 70), 1 << 70)
offsets = numbers | json_values | st.lists(numbers | st.text(max_size=4) | st.none(), max_size=4)
again = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the files are only read


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"ts": range(20), "n": range(20)}, schema=SCHEMA), tmp_path / "in" / "a.parquet", row_group_size=7)
    return tmp_path / "in"


SOURCES: dict[str, Callable[[Path], Source]] = {
    "generate": lambda folder: GenerateSource(rows=30, splits=2),
    "parquet": lambda folder: ParquetSource(folder, event_time="ts"),
    "watched directory": lambda folder: ParquetDirectorySource(folder, event_time="ts", schema=SCHEMA),
}


def first_split(source: Source) -> Any:
    found = list(source.splits())
    return found[0] if found else source.discover(lambda name: True)[0]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", SOURCES)
@again
@given(data=st.data())
def test_any_offset_is_accepted_or_our_error(name: str, data: st.DataObject, folder: Path) -> None:
    source = SOURCES[name](folder)
    split = first_split(source)
    fingerprint = source.open(split, None).offset
    offset = data.draw(offsets)
    if isinstance(fingerprint, list | tuple) and data.draw(st.booleans()):
        offset = [fingerprint[0], *data.draw(st.tuples(numbers | json_values, numbers | json_values))]
    with suppress(TidegateError):
        reader = source.open(split, json.loads(json.dumps(offset)))
        reader.poll(100)
        reader.close()


# -- committables ------------------------------------------------------------------------------------------------------

FILE: dict[str, Any] = {"pending": "out-0001-g3-0123abcd-7.pending", "final": "part-1.parquet", "rows": 5, "bytes": 90}
COMMITTABLE: dict[str, Any] = {"subtask": 1, "gang": 3, "files": [FILE]}


@given(json_values | with_wrong_parts(COMMITTABLE))
def test_any_committable_names_files_within_its_directory_or_is_corrupt(committable: Any) -> None:
    with suppress(CorruptDataError):
        for file in files_of([committable]):
            assert "/" not in file.pending + file.final and not file.final.startswith(".")


@pytest.mark.parametrize("part", ["pending", "final"])
@pytest.mark.parametrize("name", ["../up", "/root", ".hidden", "a/b", "", "a\0b"])
def test_a_committable_that_points_out_of_its_directory_is_corrupt(part: str, name: str) -> None:
    with pytest.raises(CorruptDataError):
        list(files_of([{**COMMITTABLE, "files": [{**FILE, part: name}]}]))


@again
@given(with_wrong_parts(COMMITTABLE) | json_values)
def test_sinks_refuse_what_is_no_committable_of_theirs(tmp_path: Path, committable: Any) -> None:
    sink = ParquetSink(str(tmp_path / "out"))
    for verb in (sink.hide, sink.abort):
        with suppress(TidegateError):
            verb([committable])
    with pytest.raises(TidegateError):
        StagingDirectory(str(tmp_path / "other"), ".parquet").publish([committable, COMMITTABLE])


# -- lists of spooled DataFrames -----------------------------------------------------------------------------------------

CHUNK = Chunk("p/g0/chunks/1.arrow", 0, 5, 90, 7, 1, 9)
LISTS = [FrameManifest("c2NoZW1h", (CHUNK,)), StreamHead("c2NoZW1h", 4, "token"), MicroBatch(3, "w", (CHUNK,), 9)]


@pytest.mark.parametrize("record", LISTS, ids=lambda record: type(record).__name__)
@given(data=st.data())
def test_a_damaged_list_of_a_spool_is_a_list_or_corrupt(record: Any, data: st.DataObject) -> None:
    whole = encode(record)
    parts = with_wrong_parts(json.loads(whole)).map(lambda value: json.dumps(value).encode())
    with suppress(CorruptDataError):
        decode(type(record), data.draw(damaged(whole) | parts), "p")
