"""Every test that the feature descriptions promise exists, under exactly that name, once."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent


def names(text: str) -> list[str]:
    return text.split()


UNIT = {
    "F-DCKP-001": names("""
        test_checkpoint_barrier_new_creates_aligned
        test_checkpoint_barrier_new_unaligned_flag
        test_checkpoint_barrier_size_is_24_bytes
        test_checkpoint_barrier_is_copy
        test_stream_message_is_barrier_returns_true
        test_stream_message_as_barrier_returns_some
        test_stream_message_map_preserves_barrier
        test_injector_periodic_fires_after_interval
        test_injector_periodic_does_not_fire_early
        test_injector_coordinator_trigger_overrides_periodic
        test_injector_coordinator_handle_inject
        test_injector_poll_barrier_fast_path_no_alloc
        test_injector_increments_epoch_on_periodic
        test_injector_barriers_injected_counter
        test_injector_duplicate_coordinator_signal_latest_wins
        test_packed_barrier_cmd_round_trip
        test_packed_barrier_cmd_empty_sentinel
        test_packed_barrier_cmd_epoch_48bit_max
        test_inject_poll_concurrent_consistency
    """),
    "F-DCKP-006": names("""
        test_unaligned_config_defaults
        test_immediate_unaligned_with_flag
        test_force_unaligned_mode
        test_threshold_switch_from_aligned
        test_inflight_capture_single_channel
        test_inflight_capture_multiple_channels
        test_late_barrier_consumed_after_snapshot
        test_all_late_barriers_received_resets_state
        test_events_pass_through_after_unaligned_snapshot
        test_inflight_buffer_size_limit
        test_disabled_unaligned_stays_aligned
        test_metrics_count_unaligned_checkpoints
        test_metrics_count_threshold_switches
    """),
    "F-DCKP-008": names("""
        test_coordinator_creation
        test_initiate_checkpoint_generates_id
        test_initiate_checkpoint_concurrency_limit
        test_inject_barriers_all_succeed
        test_inject_barriers_partial_failure_aborts
        test_on_node_prepared_tracks_progress
        test_on_all_nodes_prepared_triggers_commit
        test_commit_writes_manifest
        test_abort_notifies_all_nodes
        test_timeout_detection
        test_unaligned_fallback_on_timeout
        test_leader_failover_aborts_in_progress
        test_leader_failover_restores_epoch
        test_cluster_membership_update
    """),
    "F-STREAM-013": names("""
        test_checkpoint_disabled_by_default
        test_checkpoint_no_op_when_disabled
        test_checkpoint_requires_data_dir
        test_wal_requires_checkpoint
        test_trigger_checkpoint
        test_manual_checkpoint
        test_restore_from_checkpoint
        test_checkpoint_contains_sequences
        test_checkpoint_contains_watermarks
    """),
}

INTEGRATION = {
    "F-DCKP-001": names("""
        test_barrier_flows_through_single_operator
        test_barrier_flows_through_linear_chain
        test_barrier_fan_out_to_multiple_channels
        test_barrier_interleaved_with_events
        test_periodic_injection_under_load
        test_coordinator_triggered_injection
    """),
    "F-DCKP-006": names("""
        test_unaligned_checkpoint_with_backpressure
        test_unaligned_checkpoint_save_and_load
        test_unaligned_recovery_replays_inflight
        test_unaligned_then_aligned_sequence
        test_unaligned_with_join_operator
    """),
    "F-DCKP-008": names("""
        test_distributed_checkpoint_3_nodes
        test_distributed_checkpoint_with_cross_node_channels
        test_node_failure_during_checkpoint
        test_node_failure_after_prepare
        test_coordinator_failover_and_recovery
        test_consecutive_distributed_checkpoints
        test_gc_after_distributed_checkpoint
    """),
}


@cache
def defined() -> Counter[str]:
    """How often each name is defined as a test function, at the top of a module or in a class."""
    found: Counter[str] = Counter()
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found[node.name] += 1
    return found


@pytest.mark.parametrize("feature", sorted(UNIT))
def test_every_promised_unit_test_exists(feature: str) -> None:
    found = defined()
    assert [name for name in UNIT[feature] if found[name] != 1] == []


@pytest.mark.parametrize("feature", sorted(INTEGRATION))
def test_every_promised_integration_test_exists(feature: str) -> None:
    found = defined()
    assert [name for name in INTEGRATION[feature] if found[name] != 1] == []


def test_the_lists_are_complete() -> None:
    assert sum(map(len, UNIT.values())) == 55
    assert sum(map(len, INTEGRATION.values())) == 18
