"""What is decided past damaged entries."""

from __future__ import annotations

from typing import Any

import pytest
from coordination import SHAPE
from test_view import commit, restore, takeover
from torn import LOG, torn

from tidegate.core.log.resolve import FallBack, Refuse, RestoreFrom, StartFresh, resolve
from tidegate.core.log.retain import oldest_restorable
from tidegate.core.log.view import LogView


def choose(entries: list[Any], **options: Any) -> Any:
    return resolve(LogView(entries), SHAPE, lambda manifest: None, **options)


def test_a_damaged_newest_commit_is_skipped_and_named() -> None:
    lost = torn(LOG[3])
    assert choose([*LOG[:3], lost]) == FallBack(LOG[2].manifest, ((3, lost.why),))
    assert "log/3" in lost.why


def test_older_damage_is_no_reason_to_go_back() -> None:
    assert choose([*LOG[:2], torn(LOG[2]), LOG[3]]) == RestoreFrom(LOG[3].manifest)


def test_when_all_commits_are_damaged_nothing_is_started() -> None:
    found = choose([takeover(0), torn(commit(1))])
    assert isinstance(found, Refuse) and "every retained checkpoint is damaged" in found.why
    assert choose([takeover(0), torn(commit(1))], restore="none") == StartFresh()


@pytest.mark.parametrize("choice", ["latest", 2])
def test_a_hidden_head_is_refused_saying_what_to_do(choice: Any) -> None:
    entries = [*LOG, torn(restore(4, 1))]
    found = choose(entries, restore=choice)
    assert isinstance(found, Refuse) and "log/4" in found.why and "restore='none'" in found.why
    assert choose(entries, restore="none") == StartFresh()


def test_a_damaged_epoch_that_was_asked_for_is_refused() -> None:
    found = choose([*LOG[:3], torn(LOG[3])], restore=3)
    assert isinstance(found, Refuse) and "log/3" in found.why


def test_going_back_over_a_damaged_commit_needs_sinks_that_hide_without_names() -> None:
    entries = [*LOG[:3], torn(LOG[3])]
    for choice in ("latest", 2):
        found = choose(entries, restore=choice, can_hide_unnamed=False)
        assert isinstance(found, Refuse) and "log/3" in found.why
    assert choose(entries, restore="none", can_hide_unnamed=False) == StartFresh()
    for choice in ("latest", 2, "none"):
        assert isinstance(choose(entries, restore=choice, can_hide=False), Refuse)


def test_retention_does_not_count_damaged_commits() -> None:
    assert oldest_restorable(LogView(LOG), 3, 4) == 2
    assert oldest_restorable(LogView([*LOG[:3], torn(LOG[3])]), 3, 4) == 1


@pytest.mark.parametrize("choice", ["latest", 2])
def test_sinks_that_are_newer_than_the_log_must_be_able_to_hide(choice: Any) -> None:
    found = choose(LOG, restore=choice, can_hide_unnamed=False, sinks_newer="epoch 9")
    assert isinstance(found, Refuse) and "put the newest copy back" in found.why and "epoch 9" in found.why
    assert choose(LOG, restore="none", can_hide_unnamed=False, sinks_newer="epoch 9") == StartFresh()
    assert isinstance(choose(LOG, restore=choice, sinks_newer="epoch 9"), RestoreFrom)
