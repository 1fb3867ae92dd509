"""Settings of checkpointing: off by default, checked when made."""

from __future__ import annotations

import dataclasses
import pickle
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tidegate.core.barrier.align import UnalignedCheckpointConfig
from tidegate.core.checkpoint.config import GIB, MIB, CheckpointConfig, UnalignedMode, WalMode
from tidegate.errors import DataDirRequired, InvalidUseError, WalRequiresCheckpoint


def test_the_defaults() -> None:
    config = CheckpointConfig()
    assert (config.interval, config.interval_ms, config.enabled) == (None, None, False)
    assert (config.data_dir, config.wal_mode) == (None, None)
    assert config.max_checkpoint_size == GIB == 1 << 30
    assert (config.timeout_ms, config.alignment_timeout_ms, config.min_pause_ms) == (300_000, 1_000, 0)
    assert config.unaligned == "auto"
    assert config.max_inflight_bytes == 512 * MIB
    assert config.retain == 5
    assert config.tolerable_failures is None


@pytest.mark.parametrize("interval", ["10s", 10_000, timedelta(seconds=10)])
def test_an_interval_turns_it_on(interval: Any) -> None:
    config = CheckpointConfig(interval=interval)
    assert config.enabled
    assert config.interval_ms == 10_000


def test_durations_are_readable_in_milliseconds() -> None:
    config = CheckpointConfig(timeout="2m", alignment_timeout=timedelta(seconds=5), min_pause=250)
    assert (config.timeout_ms, config.alignment_timeout_ms, config.min_pause_ms) == (120_000, 5_000, 250)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("interval", 0), ("interval", "0s"), ("interval", -1), ("interval", "soon"), ("interval", 1.5),
        ("timeout", 0), ("timeout", None), ("alignment_timeout", "0s"), ("min_pause", -1), ("storage_timeout", 0),
        ("unaligned", "sometimes"), ("unaligned", None), ("unaligned", True),
        ("max_checkpoint_size", 0), ("max_checkpoint_size", 1.5), ("max_inflight_bytes", -1),
        ("retain", 0), ("retain", True), ("retain", "5"), ("tolerable_failures", -1),
        ("adaptive_alignment", 1), ("adaptive_alignment", "yes"), ("data_dir", ""), ("data_dir", "  "), ("data_dir", 5),
    ],
)  # fmt: skip
def test_a_setting_that_makes_no_sense_is_refused_at_construction(name: str, value: object) -> None:
    with pytest.raises(InvalidUseError):
        CheckpointConfig(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["sideways", 1, b"sync"])
def test_an_unknown_wal_mode_is_refused(mode: Any) -> None:
    with pytest.raises(InvalidUseError, match=r"'async' \| 'sync'"):
        CheckpointConfig(interval="1s", wal_mode=mode)


def test_a_wal_without_checkpoints_is_refused_at_construction() -> None:
    with pytest.raises(WalRequiresCheckpoint, match="set interval"):
        CheckpointConfig(wal_mode="async")


def test_modes_are_accepted_as_text() -> None:
    config = CheckpointConfig(interval="1s", wal_mode="sync", unaligned="never", tolerable_failures=0)
    assert config.wal_mode is WalMode.SYNC
    assert config.unaligned is UnalignedMode.NEVER
    assert config == CheckpointConfig(interval="1s", wal_mode=WalMode.SYNC, unaligned=UnalignedMode.NEVER, tolerable_failures=0)


def test_settings_cross_spark_and_cannot_be_changed() -> None:
    config = CheckpointConfig(interval="1s", wal_mode="async")
    assert pickle.loads(pickle.dumps(config)) == config
    assert dataclasses.replace(config, retain=2).retain == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.retain = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("unaligned", "enabled", "forced"),
    [("auto", True, False), ("always", True, True), ("never", False, False)],
)
def test_the_fan_in_gets_the_same_settings(unaligned: str, enabled: bool, forced: bool) -> None:
    config = CheckpointConfig(unaligned=unaligned, alignment_timeout="7s", max_inflight_bytes=99)
    assert config.unaligned_config() == UnalignedCheckpointConfig(
        enabled=enabled,
        alignment_timeout_threshold_ms=7_000,
        max_inflight_buffer_bytes=99,
        force_unaligned=forced,
    )


def test_without_checkpoints_no_store_is_needed() -> None:
    assert CheckpointConfig().store_url() is None
    assert CheckpointConfig(data_dir="/a").store_url("/b") is None


def test_with_checkpoints_a_store_is_needed() -> None:
    with pytest.raises(DataDirRequired, match="data_dir or store"):
        CheckpointConfig(interval="1s").store_url()


def test_store_or_data_dir_is_the_url() -> None:
    assert CheckpointConfig(interval="1s").store_url("s3://bucket/x") == "s3://bucket/x"
    assert CheckpointConfig(interval="1s", data_dir="/var/x").store_url() == "/var/x"
    assert CheckpointConfig(interval="1s", data_dir=Path("/var/x")).store_url() == "/var/x"


@pytest.mark.parametrize("store", ["/var/x", "/var/x/", "file:///var/x", "file:///var/x/"])
def test_store_and_data_dir_may_name_the_same_directory_in_two_ways(store: str) -> None:
    assert CheckpointConfig(interval="1s", data_dir="/var/x").store_url(store) == store


@pytest.mark.parametrize("store", ["/var/y", "s3://var/x", "/"])
def test_store_and_data_dir_must_agree(store: str) -> None:
    with pytest.raises(InvalidUseError, match="give only one"):
        CheckpointConfig(interval="1s", data_dir="/var/x").store_url(store)


def test_a_store_that_is_no_url_is_refused() -> None:
    with pytest.raises(InvalidUseError, match="path or a URL"):
        CheckpointConfig(interval="1s").store_url("")


def test_a_store_that_cannot_be_written_is_waited_for_ten_minutes_unless_told_otherwise() -> None:
    assert CheckpointConfig().storage_timeout_ms == 600_000
    assert CheckpointConfig(storage_timeout="1h").storage_timeout_ms == 3_600_000
