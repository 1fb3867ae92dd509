"""What a coordinator reads of a job it has never seen."""

from __future__ import annotations

import pytest

from tidegate.core.checkpoint.budget import PublishBudget
from tidegate.core.checkpoint.policy import DistributedCheckpointConfig
from tidegate.core.checkpoint.prepare import ChannelShape, PlanShape
from tidegate.core.failure.restart import RestartPolicy
from tidegate.errors import CorruptDataError
from tidegate.runtime.description import JobDescription, read_description, write_description
from tidegate.store.open import open_store

DESCRIPTION = JobDescription(
    shape=PlanShape(
        job="w",
        parallelism=2,
        tasks=frozenset({"a", "b"}),
        operators=frozenset({"b"}),
        channels=frozenset({ChannelShape("a", "out", 0, "hash"), ChannelShape("b", "in", 0, "hash")}),
        fingerprint={"b": {"kind": "x"}},
        edges={0: "a to b"},
    ),
    config=DistributedCheckpointConfig(publish_budgets={"out": PublishBudget(3, 500)}),
    hiding={"can_hide": True, "can_hide_unnamed": False},
    savepoint=None,
    storage_timeout_ms=1,
    stall_timeout_ms=2,
    join_timeout_ms=3,
    leader_timeout_ms=4,
    wants_unaligned=True,
    restarts=RestartPolicy(limit=3),
)


def test_it_is_what_the_driver_has_written() -> None:
    store = open_store("memory://")
    assert read_description(store, "w") is None
    write_description(store, "w", 3, DESCRIPTION)
    write_description(store, "w", 7, DESCRIPTION)
    assert read_description(store, "w") == DESCRIPTION
    assert [info.path for info in store.list("w/leader")] == ["w/leader/00000000000000000007-job.json"]


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data.replace(b'"w"', b'"v"'), lambda data: b"{}"])
def test_a_damaged_one_is_refused(change: object) -> None:
    data = change(DESCRIPTION.to_json())  # type: ignore[operator]
    with pytest.raises(CorruptDataError, match="checksum differs"):
        JobDescription.from_json(data, "p")
