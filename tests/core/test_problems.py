"""What counts as wrong now, since when, and how often it is told."""

from __future__ import annotations

import pytest

from tidegate.core.checkpoint import effects as do
from tidegate.core.checkpoint import events as ev
from tidegate.core.failure.problems import Passed, Problem, ProblemKind, Problems, StillWrong
from tidegate.core.log.view import Takeover
from tidegate.errors import CheckpointAbortedError, NodeFailed

PUT = do.PutEntry(0, "w", Takeover(slot=0, term=0, write_id="w", leader="l"))
UNKNOWN = ev.PutAnswered(0, "w", ev.Unknown("full"))
WRITTEN = ev.PutAnswered(0, "w", ev.Written())
HIDE = do.Hide(1, ())
ABORTED = do.CheckpointAborted(7, "node 0 cannot take part: full", (), NodeFailed("full"))
CANCELLED = do.CheckpointAborted(7, "cancelled on request", (), CheckpointAbortedError("cancelled on request"), False)
COMPLETED = do.CheckpointCompleted(7, 1, 5, None, ())  # type: ignore[arg-type]  # its manifest does not matter here
FINISHED = do.JobFinished(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fails", "works", "kind"),
    [
        (UNKNOWN, WRITTEN, ProblemKind.LOG),
        (UNKNOWN, ev.PutAnswered(0, "w", ev.Conflict()), ProblemKind.LOG),
        (ev.PublishFailed(1, "full"), ev.Published(1), ProblemKind.SINKS),
        (ev.HideFailed(1, "full"), ev.Hidden(1), ProblemKind.SINKS),
        (ABORTED, COMPLETED, ProblemKind.CHECKPOINTS),
        (UNKNOWN, do.JobStopped(), ProblemKind.LOG),
        (ABORTED, FINISHED, ProblemKind.CHECKPOINTS),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_problem_is_there_from_its_first_failure_until_the_same_thing_works(fails, works, kind: ProblemKind) -> None:
    problems = Problems()
    (told,) = problems.noted(fails, 0, 1_000)
    assert isinstance(told, StillWrong) and problems.current == (told.problem,)
    assert (told.problem.kind, told.problem.since_ms, told.problem.times) == (kind, 1_000, 1)
    assert "full" in told.problem.because and told.problem.advice and "full" in str(told.problem)
    assert problems.noted(works, 5, 1_005) == (Passed(told.problem),)
    assert problems.current == ()
    assert problems.last_cause == told.problem.because


@pytest.mark.parametrize("fact", [CANCELLED, ev.Tick(), WRITTEN, COMPLETED, do.SetTimer(5)], ids=lambda f: type(f).__name__)
def test_what_is_no_failure_makes_no_problem(fact) -> None:
    problems = Problems()
    assert problems.noted(fact, 0, 0) == ()
    assert problems.current == () and problems.last_cause is None


def test_the_same_problem_is_told_first_and_then_every_ten_seconds_with_its_count() -> None:
    problems = Problems()
    told = [n for now in range(0, 25_000, 1_000) for n in problems.noted(UNKNOWN, now, 50_000 + now)]
    assert [n.problem.times for n in told] == [1, 11, 21]
    assert {n.problem.since_ms for n in told} == {50_000}


def test_a_problem_that_comes_back_is_told_at_once_and_counts_from_one() -> None:
    problems = Problems()
    problems.noted(UNKNOWN, 0, 0)
    problems.noted(WRITTEN, 1, 1)
    (told,) = problems.noted(UNKNOWN, 2, 2)
    assert (told.problem.since_ms, told.problem.times) == (2, 1)


def test_the_newest_cause_counts_and_the_oldest_problem_comes_first() -> None:
    problems = Problems()
    problems.noted(ABORTED, 0, 10)
    problems.noted(UNKNOWN, 5, 15)
    problems.noted(ev.PutAnswered(0, "w", ev.Unknown("read-only")), 6, 16)
    assert [(p.kind, p.because) for p in problems.current][1] == (ProblemKind.LOG, "read-only")
    assert [p.kind for p in problems.current] == [ProblemKind.CHECKPOINTS, ProblemKind.LOG]
    assert problems.last_cause == "read-only"


def test_a_started_gang_ends_the_restores_problem_and_a_commit_that_of_nodes() -> None:
    problems = Problems()
    problems.failed(ProblemKind.RESTORE, "gone", 0, 0)
    problems.failed(ProblemKind.NODES, "full", 0, 1)
    assert [n.problem.kind for n in problems.noted(do.StartGang(1, None), 1, 1)] == [ProblemKind.RESTORE]
    assert [n.problem.kind for n in problems.noted(COMPLETED, 1, 1)] == [ProblemKind.NODES]


@pytest.mark.parametrize(
    ("effect", "answer", "slow_ms"),
    [(PUT, WRITTEN, 10_000), (HIDE, ev.Hidden(1), 60_000), (do.Publish(1, 1, ()), ev.Published(1), 60_000)],
    ids=["put", "hide", "publish"],
)
def test_an_effect_without_an_answer_becomes_a_problem_of_its_own(effect, answer, slow_ms: int) -> None:
    problems = Problems()
    assert problems.look_ms is None
    problems.noted(effect, 100, 7_100)
    assert problems.look_ms == 100 + slow_ms
    assert problems.look(99 + slow_ms, 7_099 + slow_ms) == ()
    (told,) = problems.look(100 + slow_ms, 7_100 + slow_ms)
    assert told.problem == Problem(
        told.problem.kind, told.problem.what, f"no answer for {slow_ms // 1_000} s", told.problem.advice, 7_100, 0
    )
    assert problems.look_ms == 100 + 2 * slow_ms
    (again,) = problems.look(100 + 2 * slow_ms, 7_100 + 2 * slow_ms)
    assert again.problem.because == f"no answer for {2 * slow_ms // 1_000} s"
    assert problems.noted(answer, 1, 1) == (Passed(again.problem),)
    assert problems.look_ms is None
