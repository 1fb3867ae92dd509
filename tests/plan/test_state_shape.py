"""Whether a checkpoint's state fits a changed pipeline."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pyarrow as pa
import pytest

import tidegate as tg
from tidegate import col
from tidegate.planner.description import describe_state, state_difference
from tidegate.values import Json

TEN = tg.tumbling("10s")


def shape(stream: tg.Stream) -> dict[str, Json]:
    return tg.Pipeline("job", stream.named("op").collect().named("out")).describe_state()


def counted(stream: tg.Stream) -> tg.Stream:
    return stream.key_by("key").window(TEN).aggregate(n=tg.count(), s=tg.sum("value"))


def test_the_description_is_json_and_says_what_state_is_made_of(bids: tg.Stream) -> None:
    found = shape(counted(bids.named("in")))
    assert json.loads(json.dumps(found)) == found
    assert found["op"] == {
        "kind": "aggregate",
        "keys": ["key int64"],
        "window": {"kind": "tumbling", "size": 10_000, "slide": 10_000},
        "time": "int64",
        "key_groups": 128,
        "aggregates": ["n=count() int64", "s=sum(value) double"],
    }
    assert sorted(found) == ["in", "op", "out"]


def test_the_same_pipeline_fits_at_any_parallelism(bids: tg.Stream) -> None:
    pipeline = tg.Pipeline("job", counted(bids).collect())
    one, four = describe_state(pipeline.physical(1)), describe_state(pipeline.physical(4))
    assert state_difference(one, four) is None
    assert one == four


def test_a_changed_filter_above_named_operators_still_fits(bids: tg.Stream) -> None:
    old, new = (shape(counted(bids.filter(col("kind") == kind))) for kind in (1, 2))
    assert state_difference(old, new) is None


Change = Callable[[tg.Stream], tg.Stream]
CHANGES: dict[str, tuple[Change, str]] = {
    "window": (
        lambda s: s.key_by("key").window(tg.tumbling("20s")).aggregate(n=tg.count(), s=tg.sum("value")),
        "operator 'op' does not fit: window was",
    ),
    "keys": (
        lambda s: s.key_by("note").window(TEN).aggregate(n=tg.count(), s=tg.sum("value")),
        """operator 'op' does not fit: keys was ["key int64"] and is now ["note string"]""",
    ),
    "aggregates": (
        lambda s: s.key_by("key").window(TEN).aggregate(n=tg.count(), s=tg.max("value")),
        "operator 'op' does not fit: aggregates was",
    ),
    "kind": (
        lambda s: s.join(s, on="key", window=TEN),
        "operator 'op' does not fit: aggregates was",
    ),
    "columns of the sink": (
        lambda s: s.key_by("key").window(TEN).aggregate(n=tg.count(), total=tg.sum("value")),
        "operator 'op' does not fit: aggregates was",
    ),
}


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_a_change_is_named_with_the_operator_and_both_values(name: str, bids: tg.Stream) -> None:
    change, words = CHANGES[name]
    old, new = shape(counted(bids)), shape(change(bids))
    found = state_difference(old, new)
    assert found is not None
    assert words in found
    assert ".named()" in found


def test_an_operator_that_is_gone_is_named(bids: tg.Stream) -> None:
    found = state_difference(shape(counted(bids)), shape(bids.filter(col("key") > 1)))
    assert found is not None
    assert "the checkpoint has state of aggregate 'op', which the pipeline lacks" in found


def test_an_operator_that_replaced_it_is_named_too(bids: tg.Stream) -> None:
    def unnamed(kind: int) -> dict[str, Json]:
        stream = bids.named("in").filter(col("kind") == kind).key_by("key").window(TEN).aggregate(n=tg.count())
        return tg.Pipeline("job", stream.collect().named("out")).describe_state()

    found = state_difference(unnamed(1), unnamed(2))
    assert found is not None
    assert "which the pipeline lacks but has 'aggregate-" in found


def test_a_new_operator_has_no_state_to_go_on_with(bids: tg.Stream) -> None:
    old = tg.Pipeline("job", bids.named("in").collect("a").named("a"))
    new = tg.Pipeline("job", bids.named("in").collect("a").named("a"), bids.collect("b").named("b"))
    found = state_difference(old.describe_state(), new.describe_state())
    assert found is not None
    assert "no state of sink 'b', which is new" in found


def test_a_description_that_makes_no_sense_is_a_difference_and_no_crash(bids: tg.Stream) -> None:
    new = shape(counted(bids))
    assert "it was 17 and is now" in str(state_difference(new | {"op": 17}, new))


def test_equal_fingerprints_mean_that_state_fits(bids: tg.Stream) -> None:
    one, same = (tg.Pipeline("job", counted(bids).collect()) for _ in range(2))
    other = tg.Pipeline("job", bids.key_by("key").window(TEN).aggregate(n=tg.count()).collect())
    assert one.fingerprint == same.fingerprint
    assert one.fingerprint != other.fingerprint


def test_running_aggregates_and_functions_say_what_their_state_is_made_of(bids: tg.Stream) -> None:
    running = shape(bids.key_by("key", "note").aggregate(n=tg.count(), v=tg.last("value")))
    assert running["op"] == {
        "kind": "running aggregate",
        "keys": ["key int64", "note string"],
        "key_groups": 128,
        "aggregates": ["n=count() int64", "v=last(value) double"],
    }
    processed = shape(processing(bids, pa.int64()))
    assert isinstance(processed["op"], dict) and processed["op"]["state"] == ["note string", "n int64"]


def processing(bids: tg.Stream, kind: pa.DataType) -> tg.Stream:
    state = pa.schema([("n", kind)])
    return bids.key_by("note").process(same, state=state, output=bids.schema)


def same(batch: pa.RecordBatch, state: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    return batch, state


def sessions(bids: tg.Stream, gap: str, late: str = "0s") -> tg.Stream:
    return bids.key_by("key").window(tg.session(gap, allowed_lateness=late)).aggregate(n=tg.count())


def test_a_change_of_keyed_state_is_named(bids: tg.Stream) -> None:
    changes = [
        (processing(bids, pa.int64()), processing(bids, pa.string()), "state was .*n int64.*n string"),
        (sessions(bids, "10s"), sessions(bids, "20s"), "window was .*10000.*20000"),
        (sessions(bids, "10s"), sessions(bids, "10s", "1s"), "window was .*allowed_lateness"),
        (bids.key_by("key").aggregate(n=tg.count()), bids.key_by("note").aggregate(n=tg.count()), "keys was"),
        (counted(bids), bids.key_by("key").aggregate(n=tg.count()), "'op' does not fit"),
    ]
    for old, new, reason in changes:
        difference = state_difference(shape(old), shape(new))
        assert difference is not None and re.search(reason, difference), difference


def test_asking_for_late_rows_changes_what_is_on_the_way(bids: tg.Stream) -> None:
    def described(*, late: bool) -> dict[str, Json]:
        result = counted(bids)
        outputs = [result.named("op").collect("a"), *([result.late().collect("b")] if late else [])]
        return tg.Pipeline("job", *outputs).describe_state()

    difference = state_difference(described(late=False), described(late=True))
    assert difference is not None and "late_rows was null and is now true" in difference
