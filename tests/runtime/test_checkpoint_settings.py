"""Every setting of checkpoints is documented, and the coordinator's follow from the user's as the page says."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

import tidegate as tg
from tidegate.core.checkpoint.policy import DistributedCheckpointConfig
from tidegate.runtime.start import coordinator_config

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "checkpoints.md").read_text()
TABLES = [re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE) for part in PAGE.split("| of the coordinator |")]


@pytest.mark.parametrize(("config", "table"), [(tg.CheckpointConfig, TABLES[0]), (DistributedCheckpointConfig, TABLES[1])])
def test_every_setting_is_on_the_page(config: type, table: list[str]) -> None:
    assert table == [field.name for field in fields(config)]


def test_what_a_user_sets_reaches_the_coordinator() -> None:
    config = coordinator_config(
        tg.CheckpointConfig(
            interval="7s", timeout="50s", alignment_timeout="2s", adaptive_alignment=True, retain=3, min_pause="4s",
            tolerable_failures=6, storage_timeout="9s", max_checkpoint_size=12_345,
        )
    )  # fmt: skip
    assert config == DistributedCheckpointConfig(
        checkpoint_interval_ms=7_000,
        checkpoint_timeout_ms=50_000,
        barrier_injection_timeout_ms=10_000,
        node_snapshot_timeout_ms=50_000,
        unaligned_threshold_ms=2_000,
        adaptive_alignment=True,
        gc_retain_count=3,
        min_pause_ms=4_000,
        tolerable_failures=6,
        storage_timeout_ms=9_000,
        publish_tries_max=1,
        max_checkpoint_bytes=12_345,
    )
