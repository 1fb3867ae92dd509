"""Object names: formatted and parsed in one module."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.log.paths import (
    DescriptionObject,
    InFlightObject,
    JobPaths,
    LatestHint,
    LeaderObject,
    LogObject,
    SharedRun,
    StateObject,
    checkpoint_of,
)
from tidegate.errors import InvalidUseError

PATHS = JobPaths("bids")
NUMBERS = st.integers(0, 2**64 - 1)
PARTS = st.text(min_size=1, max_size=20).filter(lambda p: p not in (".", "..") and p.isprintable())


def test_the_store_layout() -> None:
    assert PATHS.log_entry(12) == "bids/log/00000000000000000012.json"
    assert PATHS.state(7, 3) == "bids/checkpoints/00000000000000000007/3.arrow"
    folder = "bids/checkpoints/00000000000000000007/operators/per_key/2"
    assert PATHS.inflight(7, "per_key", 2, "4-1") == f"{folder}/inflight_4-1.buf"
    assert PATHS.outflight(7, "per_key", 2, 4) == f"{folder}/outflight_4.buf"
    assert PATHS.shared(7, 5) == "bids/shared/00000000000000000007-5.arrow"
    assert PATHS.latest == "bids/_latest"
    assert PATHS.leader(3) == "bids/leader/00000000000000000003.json"
    assert PATHS.description(3) == "bids/leader/00000000000000000003-job.json"
    assert (PATHS.log_prefix, PATHS.leader_prefix) == ("bids/log", "bids/leader")
    assert PATHS.object_prefixes == ("bids/checkpoints", "bids/shared")


def test_a_listing_of_the_log_comes_in_numeric_order() -> None:
    slots = [0, 9, 10, 99, 100, 2**40]
    assert sorted(map(PATHS.log_entry, slots)) == [PATHS.log_entry(slot) for slot in slots]


@pytest.mark.parametrize("job", ["", "_x", ".x", "a/b", "a b", "..", "x" * 129, "job\n", "ä"])
def test_a_job_name_that_is_not_path_safe_is_refused(job: str) -> None:
    with pytest.raises(InvalidUseError, match="job name"):
        JobPaths(job)


@pytest.mark.parametrize("job", ["a", "Bids-2.x_y", "0", "x" * 128])
def test_a_plain_job_name_is_taken(job: str) -> None:
    assert JobPaths(job).job == job


@given(NUMBERS, st.integers(0, 9_999), PARTS, PARTS)
def test_every_name_parses_back(number: int, small: int, operator: str, channel: str) -> None:
    for name in (
        LogObject(number),
        StateObject(number, small),
        InFlightObject(number, operator, small, "in", channel),
        InFlightObject(number, operator, small, "out", channel),
        SharedRun(number, channel),
        LatestHint(),
        LeaderObject(number),
        DescriptionObject(number),
    ):
        path = PATHS.format(name)
        assert PATHS.parse(path) == name
        assert ".." not in path.split("/")


@pytest.mark.parametrize(
    "path",
    [
        "",
        "bids",
        "other/_latest",
        "bids/log/12.json",
        "bids/log/99999999999999999999.json",
        "bids/log/00000000000000000012.json.tmp",
        "bids/checkpoints/00000000000000000007/03.arrow",
        "bids/shared/00000000000000000007-..arrow",
        "bids/shared/00000000000000000007-%2e%2e.arrow",
        "bids/notes.txt",
    ],
)
def test_a_name_written_by_nobody_here_is_foreign(path: str) -> None:
    assert PATHS.parse(path) is None


@given(st.text())
def test_parsing_anything_never_fails(text: str) -> None:
    for path in (text, f"bids/{text}"):
        name = PATHS.parse(path)
        assert name is None or PATHS.format(name) == path


@pytest.mark.parametrize("number", [-1, 2**64])
def test_numbers_have_64_bits(number: int) -> None:
    with pytest.raises(InvalidUseError, match="64 bits"):
        PATHS.log_entry(number)


@pytest.mark.parametrize("part", ["", ".", "..", "\ud800"])
def test_a_part_that_could_climb_out_is_refused(part: str) -> None:
    with pytest.raises(InvalidUseError, match="path"):
        PATHS.shared(1, part)


def test_checkpoint_of_tells_whose_object_it_is() -> None:
    assert checkpoint_of(StateObject(7, 0)) == 7
    assert checkpoint_of(SharedRun(8, "r")) == 8
    assert checkpoint_of(InFlightObject(9, "o", 0, "in", "c")) == 9
    assert checkpoint_of(LogObject(7)) is None
    assert checkpoint_of(LatestHint()) is None
    assert checkpoint_of(None) is None


def test_format_takes_names_only() -> None:
    with pytest.raises(AssertionError):
        PATHS.format("bids/_latest")  # type: ignore[arg-type]
