"""What a node or the leader reads back or is sent: damaged, it ends in our error or a value, and never anything else."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime_jobs import GatedSource, MemorySink, events
from runtime_world import World

import tidegate as tg
from damage import damaged, json_values, with_wrong_parts
from tidegate.connectors.framespool import Chunk, read_chunk
from tidegate.connectors.spool import read_batches
from tidegate.core.barrier.messages import Watermark
from tidegate.core.checkpoint.prepare import PrepareAck
from tidegate.errors import CorruptDataError, InFlightDeserializationFailed, TidegateError
from tidegate.runtime.continuous import ContinuousReader
from tidegate.runtime.gang import carried
from tidegate.runtime.inspect import _recorded_rows
from tidegate.runtime.metrics import COUNTS
from tidegate.runtime.snapshotfile import crc32c, encode_inflight, encode_run, read_inflight, read_run
from tidegate.runtime.source import SourceReader, expand
from tidegate.state.run import Restored
from tidegate.store.open import open_store
from tidegate.wire._gen import control_pb2 as pb
from tidegate.wire.arrow import event_of

BATCH = pa.record_batch(
    {
        "ts": pa.array([1, 2, None], pa.timestamp("us", "UTC")),
        "name": pa.array(["a", None, "ccc"]),
        "list": pa.array([[1], [], None]),
    }
)
RUN = encode_run(BATCH).joined
FLIGHTS = {
    how: encode_inflight([event_of(BATCH), Watermark(5), event_of(BATCH)], BATCH.schema, how).joined for how in (None, "lz4")
}


# -- objects -------------------------------------------------------------------------------------------------------


@given(damaged(RUN))
def test_a_damaged_run_is_rows_or_corrupt(data: bytes) -> None:
    with suppress(CorruptDataError):
        assert isinstance(read_run(data, "p"), pa.RecordBatch)


def test_a_run_without_its_rows_is_corrupt() -> None:
    empty = pa.BufferOutputStream()
    pa.ipc.new_stream(empty, BATCH.schema).close()
    with pytest.raises(CorruptDataError):
        read_run(empty.getvalue().to_pybytes(), "p")


@pytest.mark.parametrize("compression", FLIGHTS)
@given(data=st.data())
def test_damaged_recordings_are_messages_or_corrupt(compression: str | None, data: st.DataObject) -> None:
    stored = data.draw(damaged(FLIGHTS[compression]))
    with suppress(InFlightDeserializationFailed):
        assert isinstance(read_inflight(stored, BATCH.schema, "p"), list)
    with suppress(InFlightDeserializationFailed):
        assert isinstance(_recorded_rows(stored, "p"), pa.Table)


THREE = pa.record_batch({"k": pa.array(["aaaa", "bbbb", "cccc"])})


def with_bad_offset(data: bytes) -> bytes:
    """The middle offset of ``THREE`` is far outside; the first and the last stay right."""
    good = struct.pack("<4i", 0, 4, 8, 12)
    assert data.count(good) == 1
    return data.replace(good, struct.pack("<4i", 0, 4, 0x7000000, 12))


def test_a_forged_offset_in_stored_state_is_corrupt() -> None:
    with pytest.raises(CorruptDataError, match="path=p"):
        read_run(with_bad_offset(encode_run(THREE).joined), "p")


def test_a_forged_offset_in_stored_inflight_data_is_corrupt() -> None:
    forged = with_bad_offset(encode_inflight([event_of(THREE)], THREE.schema, None).joined)
    with pytest.raises(InFlightDeserializationFailed):
        read_inflight(forged, THREE.schema, "p")
    with pytest.raises(InFlightDeserializationFailed):
        _recorded_rows(forged, "p")


def test_a_forged_watermark_in_stored_inflight_data_is_corrupt() -> None:
    whole = encode_inflight([Watermark(10**18)], THREE.schema, None).joined
    with pytest.raises(InFlightDeserializationFailed):
        read_inflight(whole.replace(str(10**18).encode(), b"9" * 19), THREE.schema, "p")


def test_a_forged_offset_in_a_spooled_dataframe_is_corrupt() -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, THREE.schema) as writer:
        writer.write_batch(THREE)
    forged = with_bad_offset(sink.getvalue().to_pybytes())
    store = open_store("memory://")
    store.put("c", forged)
    with pytest.raises(CorruptDataError, match="can't be read"):
        read_chunk(store, Chunk("c", 0, 3, len(forged), crc32c(forged)), THREE.schema)


def test_a_forged_offset_in_a_spooled_file_is_corrupt(tmp_path: Path) -> None:
    with pa.ipc.new_stream(str(tmp_path / "f"), THREE.schema) as writer:
        writer.write_batch(THREE)
    (tmp_path / "f").write_bytes(with_bad_offset((tmp_path / "f").read_bytes()))
    with pytest.raises(CorruptDataError, match="can't be read"):
        list(read_batches(str(tmp_path / "f")))


# -- what nodes say ------------------------------------------------------------------------------------------------

ACK = PrepareAck(node=0, gang=0, term=0, checkpoint_id=5).to_json()
OPERATOR = {"late_rows": 1, "state_rows": 2, "state_bytes": 3}
REPORT = {**dict.fromkeys(COUNTS, 5), "is_in_unaligned_mode": False, "operators": {"w": OPERATOR}}
PROGRESS = json.dumps(REPORT).encode()


@given(damaged(ACK) | damaged(PROGRESS) | st.binary(max_size=50) | json_values.map(lambda v: json.dumps(v).encode()))
def test_what_a_node_says_is_understood_or_corrupt(data: bytes) -> None:
    with suppress(CorruptDataError):
        assert isinstance(carried(pb.NodeMessage(prepared=pb.Prepared(json=data)), 0), PrepareAck)
    with suppress(CorruptDataError):
        assert isinstance(carried(pb.NodeMessage(progress=pb.Progress(json=data)), 0), dict)
    assert carried(pb.NodeMessage(drained=pb.Drained(gang=1)), 0) is None


@pytest.mark.parametrize(
    "body",
    [
        {"prepared": pb.Prepared(json=b"{")},
        {"prepared": pb.Prepared(json=PrepareAck(node=1, gang=0, term=0, checkpoint_id=5).to_json())},
        {"progress": pb.Progress(json=b"[1]")},
        {"progress": pb.Progress(json=json.dumps(REPORT | {"rows_in": "5"}).encode())},
        {"progress": pb.Progress(json=json.dumps(REPORT | {"rows_more": 5}).encode())},
        {"progress": pb.Progress(json=json.dumps(REPORT | {"operators": {"w": {"late_rows": 1}}}).encode())},
    ],
    ids=["no JSON", "speaks for another", "no object", "no number", "not listed", "an operator without its size"],
)
def test_a_node_that_says_what_cannot_be_is_refused_and_the_leader_goes_on(body: dict[str, Any]) -> None:
    source, sink = GatedSource(events(200)), MemorySink()
    world = World(tg.Pipeline("w", tg.from_source(source).write(sink)), 2)
    world.until(lambda: world.leader.status == "RUNNING")
    assert world.leader._gang is not None
    connection = world.leader._gang.members[0].connection
    with pytest.raises(CorruptDataError):
        world.leader.message(connection, pb.NodeMessage(**body))
    while world.step():
        pass
    assert world.leader.status == "FINISHED"


def test_stale_commands_and_answers_are_refused_and_counted() -> None:
    source, sink = GatedSource(events(2_000), fed=True), MemorySink()
    world = World(tg.Pipeline("w", tg.from_source(source).write(sink)), 2)
    world.until(lambda: world.leader.status == "RUNNING")
    gang = world.leader._gang
    assert gang is not None
    connection = gang.members[0].connection
    connection.send(pb.CoordinatorMessage(term=gang.term, gang=gang.number + 7, stop=pb.Stop(reason="of another gang")))
    stale = pb.NodeMessage(term=gang.term, gang=gang.number + 7, failed=pb.Failed(gang=gang.number, message="of another gang"))
    world.leader.message(connection, stale)
    while world.step():
        pass
    metrics = world.leader.metrics()
    assert (world.leader.status, metrics["restarts"]) == ("FINISHED", 0)
    assert metrics["stale_commands"] == 1 and metrics["stale_messages"] >= 1


# -- where sources were --------------------------------------------------------------------------------------------


def bounded() -> SourceReader:
    source = GatedSource(events(40), splits=4)
    return SourceReader("s", source, source.splits(), 0, 2)


def endless() -> ContinuousReader:
    source = GatedSource(events(40), splits=4, bounded=False)
    return ContinuousReader("s", source, source.splits(), 0, 2, lambda: 0)


def place_of(reader: SourceReader | ContinuousReader) -> dict[str, Any]:
    """The offsets after a few rows, as it comes back from a manifest."""
    reader.poll(3)
    offsets: dict[str, Any] = json.loads(json.dumps(reader.freeze().meta))
    return offsets


@pytest.mark.parametrize("make", [bounded, endless])
@given(data=st.data())
def test_damaged_offsets_of_a_source_are_offsets_or_our_error(make: Any, data: st.DataObject) -> None:
    wrong = data.draw(with_wrong_parts(place_of(make())))
    with suppress(TidegateError):
        make().restore([Restored(0, wrong)])


@pytest.mark.parametrize("ranges", [[[0, 10**12, 1]], [[0, 4, 1], [0, 4, 1]], [[0, 4, 0]], [[0, 4]], 7, None, [[-1, 2, 1]]])
def test_stored_numbers_of_splits_stay_within_their_number(ranges: Any) -> None:
    with pytest.raises(CorruptDataError, match="splits=4"):
        expand(ranges, 4)
