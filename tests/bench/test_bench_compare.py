"""Comparing results: equal ones are equal, and every kind of difference is seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.bench import duckdb_side
from tidegate.bench.compare import compare
from tidegate.bench.data import ensure
from tidegate.bench.structured_streaming import link_files
from tidegate.bench.workloads import RunPaths, Shape, spread, workloads
from tidegate.errors import InvalidUseError

SHAPES: list[Shape] = ["aggregate", "join", "stateless"]
Change = Callable[[pa.Table], pa.Table]


@pytest.fixture
def answers(tmp_path: Path) -> Callable[[Shape], tuple[Path, Path]]:
    """DuckDB's answer to a small workload, and a path for another."""

    def answer(shape: Shape) -> tuple[Path, Path]:
        workload = next(w for w in workloads(20_000) if w.shape == shape)
        inputs = tuple(ensure(spec, tmp_path) for spec in workload.inputs)
        paths = RunPaths(inputs, tmp_path / "expected", tmp_path / "scratch")
        assert duckdb_side.run(shape, paths, workload.rows, 2).rows_out > 10
        (tmp_path / "result").mkdir()
        return tmp_path / "result", paths.output

    return answer


def write(folder: Path, expected: Path, change: Change) -> None:
    """The expected rows, changed, in two files and another order."""
    table = change(pq.read_table(expected / "result.parquet"))
    half = table.num_rows // 2
    pq.write_table(table.slice(half), folder / "part-0.parquet")
    pq.write_table(table.slice(0, half), folder / "part-1.parquet")


def changed(table: pa.Table, column: str, factor: float) -> pa.Table:
    values = table[column].to_pylist()
    values[7] = type(values[7])(values[7] * factor)
    field = table.schema.field(column)
    return table.set_column(table.schema.get_field_index(column), field, pa.array(values, field.type))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_rows_in_another_order_are_equal(shape: Shape, answers: Callable[..., tuple[Path, Path]]) -> None:
    result, expected = answers(shape)
    write(result, expected, lambda table: table)
    assert compare(shape, result, expected).equal


@pytest.mark.parametrize("shape", SHAPES)
def test_a_missing_or_doubled_row_is_seen(shape: Shape, answers: Callable[..., tuple[Path, Path]]) -> None:
    result, expected = answers(shape)
    write(result, expected, lambda table: table.slice(1))
    assert not compare(shape, result, expected).equal
    write(result, expected, lambda table: pa.concat_tables([table, table.slice(3, 1)]))
    comparison = compare(shape, result, expected)
    assert not comparison.equal
    assert comparison.rows == comparison.rows_expected + 1
    assert str(comparison).startswith("NOT EQUAL")


@pytest.mark.parametrize("shape", SHAPES)
def test_one_row_instead_of_another_is_seen(shape: Shape, answers: Callable[..., tuple[Path, Path]]) -> None:
    result, expected = answers(shape)
    write(result, expected, lambda table: pa.concat_tables([table.slice(1), table.slice(3, 1)]))
    assert not compare(shape, result, expected).equal


@pytest.mark.parametrize(
    ("shape", "column", "factor", "equal"),
    [
        ("aggregate", "total", 1 + 1e-13, True),
        ("aggregate", "total", 1 + 1e-6, False),
        ("aggregate", "peak", 1 + 1e-13, False),
        ("aggregate", "n", 3, False),
        ("aggregate", "window_end", 3, False),
        ("join", "value_right", 1 + 1e-13, False),
        ("join", "ts", 3, False),
        ("stateless", "cents", 1 + 1e-13, False),
    ],
)
def test_only_the_last_digits_of_a_sum_may_differ(
    shape: Shape, column: str, factor: float, equal: bool, answers: Callable[..., tuple[Path, Path]]
) -> None:
    result, expected = answers(shape)
    write(result, expected, lambda table: changed(table, column, factor))
    assert compare(shape, result, expected).equal is equal


def test_an_empty_result_is_not_equal(answers: Callable[..., tuple[Path, Path]]) -> None:
    result, expected = answers("aggregate")
    comparison = compare("aggregate", result, expected)
    assert (comparison.equal, comparison.rows) == (False, 0)
    assert comparison.rows_expected > 0


def test_pending_files_are_no_part_of_a_result(answers: Callable[..., tuple[Path, Path]]) -> None:
    result, expected = answers("stateless")
    write(result, expected, lambda table: table)
    (result / "part-0.parquet").rename(result / "_pending-0.parquet")
    assert not compare("stateless", result, expected).equal


def test_the_suite_has_the_promised_sizes() -> None:
    found = {workload.name: workload for workload in workloads(20_000_000)}
    assert list(found) == ["w1_zipf", "w1_uniform", "w2_join", "w3_stateless"]
    assert found["w1_zipf"].rows == found["w1_uniform"].rows == 20_000_000
    assert [spec.rows for spec in found["w2_join"].inputs] == [5_000_000, 5_000_000]
    assert found["w1_zipf"].inputs[0].keys == 100_000
    assert found["w1_uniform"].inputs[0].keys == 1_000_000


def test_workloads_can_be_picked_by_name() -> None:
    assert [workload.name for workload in workloads(10, ["w3_stateless"])] == ["w3_stateless"]
    with pytest.raises(InvalidUseError, match="no such workload"):
        workloads(10, ["w4"])


def test_a_spread_shows_the_noise() -> None:
    assert spread([3.0, 1.0, 10.0]) == {"min": 1.0, "median": 3.0, "max": 10.0}


def test_files_are_linked_or_else_copied(tmp_path: Path) -> None:
    source = tmp_path / "a.parquet"
    source.write_text("rows")

    def refuse(*_: object) -> None:
        raise OSError("another file system")

    assert (link_files([source], tmp_path / "linked") / "a.parquet").samefile(source)
    copied = link_files([source], tmp_path / "copied", refuse) / "a.parquet"
    assert copied.read_text() == "rows"
    assert not copied.samefile(source)
