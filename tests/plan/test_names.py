"""Operator names: chosen or derived, unique, and the same tomorrow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tidegate as tg
from tidegate import col
from tidegate.plan.connector import Source
from tidegate.plan.identity import function_text, last_part
from tidegate.planner.names import check_name

TEN = tg.tumbling("10s")


def names(*outputs: tg.Output) -> list[str]:
    plan = tg.Pipeline("job", *outputs).physical(1)
    return [spec.name for stage in plan.stages for spec in stage.operators]


def counted(stream: tg.Stream) -> tg.Stream:
    return stream.key_by("key").window(TEN).aggregate(n=tg.count())


def test_a_chosen_name_is_used_as_it_is(bids: tg.Stream) -> None:
    found = names(counted(bids.named("in")).named("per_key").collect().named("out"))
    assert found == ["in", "per_key.partial", "per_key", "out"]


def test_a_derived_name_does_not_change_when_another_branch_is_added(bids: tg.Stream, people: tg.Stream) -> None:
    alone = names(counted(bids.filter(col("kind") == 1)).collect("a"))
    first = names(counted(people).collect("b"), counted(bids.filter(col("kind") == 1)).collect("a"))
    assert set(alone) - set(first) == set()


def test_branches_that_differ_in_a_constant_have_their_own_names_in_any_order(bids: tg.Stream) -> None:
    one, two = (counted(bids.filter(col("kind") == kind)).collect(f"k{kind}") for kind in (1, 2))
    assert sorted(names(one, two)) == sorted(names(two, one))
    alone = {name for name in names(one) if name.startswith("aggregate")}
    assert alone <= set(names(two, one))


def test_operators_that_are_quite_alike_are_numbered(bids: tg.Stream) -> None:
    found = names(counted(bids).collect("a"), counted(bids).collect("b"))
    aggregates = [name for name in found if name.startswith("aggregate") and not name.endswith("partial")]
    assert aggregates[1] == aggregates[0] + "-2"


def test_data_may_move_to_another_directory(tmp_path: Path) -> None:
    def read(folder: str) -> list[str]:
        (tmp_path / folder / "bids").mkdir(parents=True)
        write(tmp_path / folder / "bids")
        return names(counted(tg.read_parquet(tmp_path / folder / "bids", event_time="ts")).collect())

    assert read("here") == read("there")


def write(directory: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"ts": [1], "key": [1]}), directory / "0.parquet")


def test_a_name_above_hides_changes_above_it(bids: tg.Stream) -> None:
    def sink(kind: int, name: str | None) -> str:
        stream = counted(bids.filter(col("kind") == kind))
        return names((stream.named(name) if name else stream).collect())[-1]

    assert sink(1, "per_key") == sink(2, "per_key")
    assert sink(1, None) != sink(2, None)


def test_naming_a_stream_does_not_read_it_twice(bids: tg.Stream) -> None:
    found = names(bids.named("bids").collect("a"), bids.filter(col("kind") == 1).collect("b"))
    assert [name for name in found if name.startswith("read")] == []
    assert found.count("bids") == 1


def test_two_names_for_one_operator_are_refused(bids: tg.Stream) -> None:
    with pytest.raises(tg.InvalidUseError, match="two names, keep one names=x, y"):
        names(bids.named("x").collect("a"), bids.named("y").collect("b"))


def test_one_name_for_two_operators_is_refused(bids: tg.Stream, people: tg.Stream) -> None:
    with pytest.raises(tg.InvalidUseError, match="same name, give each its own name=x"):
        names(bids.named("x").collect("a"), people.named("x").collect("b"))


def test_a_name_that_the_planner_needs_is_refused(bids: tg.Stream) -> None:
    with pytest.raises(tg.InvalidUseError, match=r"taken by an operator of the planner.*name=a\.partial"):
        names(counted(bids).named("a").collect().named("a.partial"))


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".hidden", "-x", "a b", "x" * 101, None, 3, "ü"])
def test_a_name_must_be_safe_in_a_path(name: object) -> None:
    with pytest.raises(tg.InvalidUseError, match="the name of a thing is made of"):
        check_name("a thing", name)


def make(value: object) -> object:
    return lambda batch: (batch, value)


def test_functions_are_distinguished_by_code_and_by_what_they_close_over() -> None:
    def with_set(batch: object) -> bool:
        return batch in {"a", "b", "c"}

    def nested(batch: object) -> object:
        return (lambda: [batch])()

    assert function_text(make(1)) == function_text(make(1))
    assert function_text(make(1)) != function_text(make(2))
    assert function_text(make([1])) == function_text(make([2]))
    assert "0x" not in function_text(nested)
    assert function_text(with_set) != function_text(nested)
    assert function_text(len) == "len"


def test_derived_names_are_the_same_in_every_process(tmp_path: Path) -> None:
    write(tmp_path)
    program = (
        "import sys, tidegate as tg\n"
        "s = tg.read_parquet(sys.argv[1], event_time='ts').map_batches(lambda b: b if b in {'x', 'y', 'z'} else b)\n"
        "print([o.name for t in tg.Pipeline('j', s.collect()).physical(1).stages for o in t.operators])"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_what_distinguishes_connectors() -> None:
    class WithPath:
        def __init__(self, path: object) -> None:
            self.path = path

    assert last_part(WithPath("s3://bucket/out/per_key/")) == "per_key"
    assert last_part(WithPath(Path("/data/bids"))) == "bids"
    assert last_part(WithPath(17)) == ""
    assert last_part(object()) == ""
    assert not isinstance(WithPath("x"), Source)
