"""Which checkpoint is restored, and which request gets which answer (F-STREAM-013)."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.checkpoint.config import CheckpointConfig
from tidegate.core.session.checkpoint import (
    Checkpoint,
    CheckpointManager,
    Inline,
    Opened,
    OperatorSnapshot,
    OperatorStateType,
    Skipped,
    checkpoint_name,
    scan,
)
from tidegate.errors import (
    CheckpointAbortedError,
    CheckpointDisabled,
    CheckpointTimeout,
    DataDirRequired,
    EpochMismatch,
    InvalidUseError,
    NoCheckpoint,
    ProtocolError,
    RetryableError,
    WalRequiresCheckpoint,
)

ON = CheckpointConfig(interval="10s", data_dir="data", timeout="5s")
OFF = CheckpointConfig()


def counter(start: int = 1) -> Callable[[], int]:
    numbers = itertools.count(start)
    return lambda: next(numbers)


def manager(config: CheckpointConfig = ON, *, start: int = 1, opened: Opened = Opened(None)) -> CheckpointManager:
    return CheckpointManager(config, allocate=counter(start), opened=opened)


def never() -> int:
    raise AssertionError("with checkpointing off no id is ever allocated")


# -- off ---------------------------------------------------------------------------------------------


def test_checkpoint_disabled_by_default() -> None:
    assert CheckpointConfig().interval is None
    assert not CheckpointManager(CheckpointConfig(), allocate=never).is_enabled


def test_checkpoint_no_op_when_disabled() -> None:
    off = CheckpointManager(OFF, allocate=never, opened=Opened(Checkpoint(4, 1)))
    assert off.trigger(now_ms=0) is None
    assert off.store_url is None
    assert off.in_progress is None
    assert off.last_checkpoint_id == 0
    assert not off.tick(1 << 40)
    with pytest.raises(CheckpointDisabled):
        off.restore()


def test_checkpoint_requires_data_dir() -> None:
    """Or a store. The settings alone are fine: the store is asked for when something is started."""
    config = CheckpointConfig(interval="10s")
    with pytest.raises(DataDirRequired):
        CheckpointManager(config, allocate=counter())
    assert CheckpointManager(config, allocate=counter(), store="s3://bucket").store_url == "s3://bucket"
    with pytest.raises(InvalidUseError, match="different stores"):
        CheckpointManager(ON, allocate=counter(), store="elsewhere")


def test_wal_requires_checkpoint() -> None:
    with pytest.raises(WalRequiresCheckpoint):
        CheckpointConfig(wal_mode="async", data_dir="data")
    assert CheckpointConfig(interval="10s", wal_mode="async").wal_mode == "async"


# -- taking ------------------------------------------------------------------------------------------


def test_trigger_checkpoint() -> None:
    """A trigger reserves an id and waits for nothing."""
    machine = manager()
    completion = machine.trigger(now_ms=0)
    assert completion is not None
    assert completion.checkpoint_id == machine.in_progress == 1
    assert not completion.done
    assert machine.last_checkpoint_id == 0
    with pytest.raises(InvalidUseError, match="under way"):
        completion.result()


def test_manual_checkpoint() -> None:
    """Whoever waits gets the id of a checkpoint that is durable."""
    machine = manager()
    completion = machine.trigger(now_ms=0)
    assert completion is not None
    woken: list[int] = []
    completion.when_done(lambda: woken.append(completion.result()))
    assert woken == []
    assert machine.complete(Checkpoint(1, 1))
    assert woken == [1]
    assert completion.done
    assert completion.result() == machine.last_checkpoint_id == 1
    assert machine.in_progress is None
    completion.when_done(lambda: woken.append(99))
    assert woken == [1, 99], "a late watcher is told at once"


def test_restore_from_checkpoint() -> None:
    machine = manager()
    with pytest.raises(NoCheckpoint, match="store=data"):
        machine.restore()
    taken = Checkpoint(1, 1, source_sequences={"bids": 5})
    machine.trigger(now_ms=0)
    machine.complete(taken)
    assert machine.restore() is taken
    reopened = scan([checkpoint_name(1)], {checkpoint_name(1): taken.to_json()}.__getitem__)
    assert manager(start=2, opened=reopened).restore() == taken


def test_checkpoint_contains_sequences() -> None:
    machine = manager()
    machine.trigger(now_ms=0)
    machine.complete(Checkpoint(1, 1, source_sequences={"bids": 5}, sink_positions={"out": 3}, wal_lsn=8))
    restored = machine.restore()
    assert restored.source_sequences == {"bids": 5}
    assert restored.sink_positions == {"out": 3}
    assert restored.wal_lsn == 8


def test_checkpoint_contains_watermarks() -> None:
    machine = manager()
    machine.trigger(now_ms=0)
    machine.complete(Checkpoint(1, 1, watermarks={"bids": 70}))
    assert machine.restore().watermarks == {"bids": 70}


def test_a_second_request_joins_the_first() -> None:
    machine = manager()
    first = machine.trigger(now_ms=0)
    assert machine.trigger(now_ms=1) is first
    machine.complete(Checkpoint(1, 1))
    second = machine.trigger(now_ms=2)
    assert second is not None
    assert second.checkpoint_id == 2


def test_a_failed_checkpoint_fails_all_its_requests_and_frees_the_slot() -> None:
    machine = manager()
    first = machine.trigger(now_ms=0)
    joined = machine.trigger(now_ms=0)
    woken: list[str] = []
    assert first is not None
    assert joined is not None
    first.when_done(lambda: woken.append("first"))
    joined.when_done(lambda: woken.append("joined"))
    assert machine.fail(1, "disk full")
    assert woken == ["first", "joined"]
    with pytest.raises(CheckpointAbortedError, match="disk full checkpoint_id=1") as caught:
        joined.result()
    assert caught.value.checkpoint_id == 1
    again = machine.trigger(now_ms=1)
    assert again is not None
    assert again.checkpoint_id == 2, "an id is never used again"


def test_a_checkpoint_that_takes_too_long_ends_at_its_deadline() -> None:
    machine = manager()
    completion = machine.trigger(now_ms=1_000)
    assert completion is not None
    assert not machine.tick(5_999)
    assert machine.tick(6_000)
    assert isinstance(completion.error, CheckpointTimeout)
    assert not machine.tick(6_001)
    assert not machine.complete(Checkpoint(1, 1)), "it comes too late"
    assert not machine.fail(1, "late")
    assert machine.last_checkpoint_id == 0
    assert isinstance(completion.error, CheckpointTimeout)


def test_the_outcome_of_a_checkpoint_that_nobody_asked_for_is_an_error_and_changes_nothing() -> None:
    machine = manager()
    completion = machine.trigger(now_ms=0)
    with pytest.raises(ProtocolError):
        machine.complete(Checkpoint(2, 1))
    with pytest.raises(ProtocolError):
        machine.fail(2, "why")
    assert machine.in_progress == 1
    assert completion is not None
    assert not completion.done


@pytest.mark.parametrize("checkpoint_id", [0, 3, 4, 1 << 64])
def test_an_id_that_was_there_before_is_refused_and_changes_nothing(checkpoint_id: int) -> None:
    damaged = (Skipped(checkpoint_name(4), "damaged"), Skipped("checkpoint-x", "name"))
    opened = Opened(Checkpoint(3, 1), damaged)
    machine = CheckpointManager(ON, allocate=lambda: checkpoint_id, opened=opened)
    with pytest.raises(InvalidUseError) as caught:
        machine.trigger(now_ms=0)
    assert isinstance(caught.value, EpochMismatch) == (checkpoint_id <= 4)
    assert machine.in_progress is None
    assert machine.last_checkpoint_id == 3


def test_ids_of_damaged_checkpoints_are_not_used_again() -> None:
    assert Opened(None).highest == 0
    assert Opened(None, (Skipped(checkpoint_name(9), "damaged"),)).highest == 9
    assert Opened(Checkpoint(3, 1)).highest == 3


@given(st.lists(st.sampled_from(["trigger", "complete", "fail", "tick", "stale"]), max_size=40))
def test_the_last_completed_only_grows(script: list[str]) -> None:
    machine = manager()
    completions = []
    last, now_ms = 0, 0
    for verb in script:
        now_ms += 2_000
        live = machine.in_progress
        if verb == "trigger":
            completions.append(machine.trigger(now_ms))
        elif verb == "complete" and live is not None:
            assert machine.complete(Checkpoint(live, 1))
        elif verb == "fail" and live is not None:
            assert machine.fail(live, "bad luck")
        elif verb == "tick":
            machine.tick(now_ms)
        elif verb == "stale" and live is not None and live > 1:
            assert not machine.complete(Checkpoint(live - 1, 1))
        assert machine.last_checkpoint_id >= last
        last = machine.last_checkpoint_id
    pending = [each for each in completions if each is not None and not each.done]
    assert all(each.checkpoint_id == machine.in_progress for each in pending)


# -- opening -----------------------------------------------------------------------------------------


def file_of(checkpoint_id: int, epoch: int = 1) -> tuple[str, bytes]:
    snapshot = OperatorSnapshot("per_key", OperatorStateType.AGGREGATION, Inline(b"x"))
    checkpoint = Checkpoint(checkpoint_id, epoch, operator_states={"per_key": snapshot})
    return checkpoint_name(checkpoint_id), checkpoint.to_json()


def test_an_empty_directory_means_fresh() -> None:
    assert scan([], never_read) == Opened(None, ())


def never_read(name: str) -> bytes:
    raise AssertionError(name)


def test_the_latest_valid_checkpoint_is_used_and_older_ones_are_not_read() -> None:
    files = dict([file_of(9), file_of(2)])
    older = checkpoint_name(1)

    def read(name: str) -> bytes:
        assert name == checkpoint_name(9)
        return files[name]

    opened = scan([older, *files, "notes.txt", "_tmp"], read)
    assert opened.latest is not None
    assert opened.latest.id == 9
    assert opened.skipped == ()


def test_invalid_checkpoints_are_named_and_skipped() -> None:
    good, gone, torn, moved = file_of(2), checkpoint_name(3), file_of(4), checkpoint_name(5)
    files = {good[0]: good[1], torn[0]: torn[1][:-9], moved: good[1]}

    def read(name: str) -> bytes:
        if name not in files:
            raise FileNotFoundError(name)
        return files[name]

    opened = scan([good[0], gone, torn[0], moved, "checkpoint-7.json"], read)
    assert opened.latest is not None
    assert opened.latest.id == 2
    reasons = {skipped.name: skipped.reason for skipped in opened.skipped}
    assert list(reasons) == ["checkpoint-7.json", moved, torn[0], gone]
    assert "another checkpoint id=2" in reasons[moved]
    assert "gone" in reasons[gone]
    assert torn[0] in reasons[torn[0]]
    assert opened.highest == 5


def test_only_invalid_checkpoints_means_fresh() -> None:
    opened = scan([checkpoint_name(1)], lambda name: b"{}")
    assert opened.latest is None
    assert len(opened.skipped) == 1
    with pytest.raises(NoCheckpoint):
        manager(start=2, opened=opened).restore()


def test_a_store_that_fails_makes_nothing_invalid() -> None:
    """Else an outage would look like a directory without checkpoints, and the job would start fresh."""

    def read(name: str) -> bytes:
        raise RetryableError("no answer")

    with pytest.raises(RetryableError):
        scan([checkpoint_name(1)], read)
