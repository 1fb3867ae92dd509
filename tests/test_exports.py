"""The public names are those that were promised, no more and no fewer."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tidegate as tg

PROMISED = {
    # sources and expressions
    "col", "read_parquet", "generate", "from_source", "from_dataframe",
    # windows and aggregates
    "tumbling", "sliding", "session",
    "count", "sum", "min", "max", "mean", "first", "last", "count_distinct",
    # what a checkpoint holds
    "read_state",
    # what a user holds
    "Stream", "Output", "Pipeline", "CheckpointConfig", "WalMode", "Tls", "Problem", "Parameter",
    # what a user's own connectors keep to, and the errors
    "Source", "Sink", "TidegateError", "InvalidUseError",
}  # fmt: skip


def test_public_names_are_exactly_those_promised() -> None:
    assert set(tg.__all__) == PROMISED
    assert len(tg.__all__) == len(PROMISED)
    assert set(dir(tg)) == PROMISED


@pytest.mark.parametrize("name", sorted(PROMISED))
def test_every_public_name_is_there_and_says_what_it_is(name: str) -> None:
    assert getattr(tg, name).__doc__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nope'"):
        tg.nope  # noqa: B018


def test_importing_tidegate_loads_nothing_large() -> None:
    program = "import sys, tidegate; print(sorted({'pyarrow', 'pyspark', 'grpc', 'numpy'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_building_a_pipeline_loads_neither_spark_nor_grpc() -> None:
    program = (
        "import sys, tidegate as tg; tg.Pipeline('job', tg.generate(rows=1).collect()).explain();"
        "print(sorted({'pyspark', 'grpc'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
