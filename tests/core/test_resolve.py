"""What to start from, and why not from something newer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from coordination import SHAPE
from test_view import commit, restore, takeover

from tidegate.core.checkpoint.manifest import CheckpointManifest, CommittableEntry
from tidegate.core.log.resolve import (
    AlreadyFinished,
    Decision,
    FallBack,
    Refuse,
    RestoreFrom,
    StartFresh,
    resolve,
)
from tidegate.core.log.view import LogView

LOG = [takeover(0), commit(1), commit(2, 1), commit(3, 2)]


def sound(manifest: CheckpointManifest) -> None:
    return None


def damaged(*epochs: int) -> Any:
    return lambda manifest: f"crc of {manifest.epoch}" if manifest.epoch in epochs else None


def choose(entries: list[Any], **changes: Any) -> Decision:
    options: dict[str, Any] = {"shape": SHAPE, "fault": sound}
    return resolve(LogView(entries), **(options | changes))


def refusal(decision: Decision) -> str:
    assert isinstance(decision, Refuse)
    return decision.why


def test_an_empty_log_starts_fresh() -> None:
    assert choose([]) == StartFresh()
    assert choose([takeover(0)]) == StartFresh()


def test_the_latest_is_the_head() -> None:
    assert choose(LOG) == RestoreFrom(LOG[3].manifest)  # type: ignore[attr-defined]


def test_the_latest_after_a_restore_is_its_parent() -> None:
    assert choose([*LOG, restore(4, 1)]) == RestoreFrom(LOG[1].manifest)  # type: ignore[attr-defined]


def test_damaged_checkpoints_are_skipped_and_named() -> None:
    found = choose(LOG, fault=damaged(3, 2))
    assert found == FallBack(LOG[1].manifest, ((3, "crc of 3"), (2, "crc of 2")))  # type: ignore[attr-defined]


def test_objects_are_looked_at_only_as_far_as_needed() -> None:
    seen: list[int] = []
    choose(LOG, fault=lambda manifest: seen.append(manifest.epoch))
    assert seen == [3]


def test_when_all_are_damaged_nothing_is_started() -> None:
    why = refusal(choose(LOG, fault=damaged(1, 2, 3)))
    assert "every retained checkpoint is damaged" in why and "epoch 1: crc of 1" in why


def test_a_fall_back_stays_above_the_oldest_restorable() -> None:
    entries = [takeover(0), commit(1), commit(2, 1, oldest_restorable=2)]
    assert "every retained" in refusal(choose(entries, fault=damaged(2)))


def test_a_fall_back_to_a_checkpoint_of_another_plan_is_refused() -> None:
    entries = [takeover(0), commit(1, plan={}), commit(2, 1)]
    assert "does not fit the plan" in refusal(choose(entries, fault=damaged(2)))


def test_none_starts_fresh() -> None:
    assert choose(LOG, restore="none") == StartFresh()


def test_an_epoch_is_taken_exactly() -> None:
    assert choose(LOG, restore=2) == RestoreFrom(LOG[2].manifest)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("entries", "epoch", "message"),
    [
        (LOG, 9, "no checkpoint with this epoch, see `tidegate checkpoints`"),
        ([*LOG, restore(4, 1)], 3, "left this checkpoint behind"),
        ([takeover(0), commit(1), commit(2, 1, oldest_restorable=2)], 1, "no longer retained"),
    ],
)
def test_an_epoch_out_of_reach_is_refused(entries: list[Any], epoch: int, message: str) -> None:
    assert message in refusal(choose(entries, restore=epoch))


def test_a_damaged_epoch_that_was_asked_for_is_refused() -> None:
    assert "crc of 2" in refusal(choose(LOG, restore=2, fault=damaged(2)))


@pytest.mark.parametrize("choice", ["latest", 3])
def test_a_plan_that_does_not_fit_is_refused_naming_the_operator(choice: Any) -> None:
    other = replace(SHAPE, fingerprint={"window": {"kind": "sliding"}})
    assert "operator 'window'" in refusal(choose(LOG, restore=choice, shape=other))


def test_another_jobs_checkpoint_is_refused() -> None:
    assert "another job" in refusal(choose(LOG, shape=replace(SHAPE, job="other")))


@pytest.mark.parametrize("choice", ["latest", 2])
def test_a_finished_job_is_finished_whatever_became_of_its_state(choice: Any) -> None:
    entries = [takeover(0), commit(1), commit(2, 1, final=True)]
    found = choose(entries, restore=choice, fault=damaged(2))
    assert found == AlreadyFinished(entries[2].manifest)  # type: ignore[attr-defined]


def test_sinks_that_cannot_hide_never_go_back() -> None:
    first, second = CommittableEntry("out", 0, 0, 1, {}, 1), CommittableEntry("out", 0, 0, 2, {}, 2)
    entries = [takeover(0), commit(1, committables=(first,)), commit(2, 1, committables=(second,))]
    assert isinstance(choose(entries, can_hide=False), RestoreFrom)
    assert isinstance(choose(entries, restore=2, can_hide=False), RestoreFrom)
    for options in ({"restore": 1}, {"restore": "none"}, {"fault": damaged(2)}):
        assert "cannot take them back" in refusal(choose(entries, can_hide=False, **options))
        assert not isinstance(choose(entries, **options), Refuse)


def test_sinks_that_cannot_hide_may_go_back_over_epochs_without_rows() -> None:
    assert isinstance(choose(LOG, restore=1, can_hide=False), RestoreFrom)
