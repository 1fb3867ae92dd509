"""Capabilities are declared by members and asked by name; a connector without any has none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidegate.connectors.collect import CollectSink
from tidegate.connectors.dataframe import DataFrameSource, DataFrameStreamSource
from tidegate.connectors.foreach import ForEachBatchSink
from tidegate.connectors.generate import GenerateSource
from tidegate.connectors.parquet_directory import ParquetDirectorySource
from tidegate.connectors.parquet_sink import ParquetSink
from tidegate.connectors.parquet_source import ParquetSource
from tidegate.plan import capabilities
from tidegate.plan.capabilities import CAPABILITIES, name_of, path_of

OWN = {"Owned", "Sweeps", "ChecksWritable"}
STAGING = OWN | {"Hides", "HidesUnnamed", "KnowsHidden", "Adopts", "Clears", "ChecksEmpty"}
EXPECTED: dict[type, set[str]] = {
    GenerateSource: set(),
    ParquetSource: {"PrunesColumns", "FiltersRows", "HasPath"},
    ParquetDirectorySource: {"Discovering", "PrunesColumns", "FiltersRows", "HasPath"},
    DataFrameSource: {"NeedsStore", "ChecksStore"},
    DataFrameStreamSource: {"NeedsStore", "ChecksStore", "Fed", "Trims", "Batched"},
    ParquetSink: STAGING | {"GatheringSink", "ChecksSchema", "HasPath"},
    CollectSink: STAGING | {"Collects", "KeptWithJob", "NeedsSpool"},
    ForEachBatchSink: OWN | {"NeedsSpool"},
}


def members(capability: type) -> set[str]:
    return {name for name in vars(capability) if not name.startswith("_")}


@pytest.mark.parametrize(("connector", "expected"), EXPECTED.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_the_connectors_of_the_package_declare_exactly_these(connector: type, expected: set[str]) -> None:
    """By their classes: what an instance sets is asked of instances, below."""
    of_class = {each.__name__ for each in CAPABILITIES if all(hasattr(connector, name) for name in members(each))}
    assert of_class == expected


def test_what_instances_carry_counts_too(tmp_path: Path) -> None:
    watched = ParquetDirectorySource(tmp_path, schema=pa.schema([("a", pa.int64())]), idle_timeout="3s")
    assert isinstance(watched, capabilities.TimesOutIdle) and watched.idle_timeout_ms == 3_000
    assert isinstance(watched, capabilities.ReadsDirectories)
    assert (name_of(CollectSink("result")), path_of(CollectSink("result"))) == ("result", None)
    assert path_of(ParquetSink(tmp_path / "out")) == str(tmp_path / "out")


def test_an_object_without_members_can_do_nothing() -> None:
    bare: Any = object()
    assert [each for each in CAPABILITIES if isinstance(bare, each)] == []
    assert name_of(bare) is None and path_of(bare) is None


def test_the_list_is_complete() -> None:
    """Every protocol of the module that can be asked for is listed, in the order of the file."""
    asked = [each for each in vars(capabilities).values() if isinstance(each, type) and each.__module__ == capabilities.__name__]
    assert list(CAPABILITIES) == [each for each in asked if vars(each).get("_is_runtime_protocol")]
