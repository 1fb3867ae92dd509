"""Reach a running job from outside: find its leader through the store, prove the job's key, ask."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from tidegate.core.failure.election import Alive, LeaderBeat, Silent, Vacant
from tidegate.errors import InvalidUseError, RetryableError
from tidegate.runtime.calls import Calls
from tidegate.runtime.description import read_description
from tidegate.runtime.election import Election, await_sighting, elected_at, is_dead, open_election, watching
from tidegate.runtime.host import control_client
from tidegate.runtime.security import Tls
from tidegate.runtime.token import read_secret, token_path
from tidegate.store.open import open_store
from tidegate.wire._gen import control_pb2 as pb

ANSWER_LIMIT_S = 600.0
SILENCE_MS = 10_000


def election_of(store_url: str, job: str, given: str | None = None) -> Election:
    """Where the job's leaders are: there, or where its driver said. Blocks for a request."""
    described = None if given is not None else read_description(open_store(store_url), job)
    return open_election(elected_at(given, None if described is None else described.election, store_url), job)


def leader_of(store_url: str, job: str, timeout_ms: int, election_url: str | None = None) -> LeaderBeat:
    """Who leads the job now. Nobody is an error that says who did. Blocks up to the timeout when the leader says nothing."""
    election = election_of(store_url, job, election_url)
    seen = _glimpse(election) if election.lease_ms is not None else await_sighting(election, watching(election, timeout_ms))
    if isinstance(seen, Vacant) or (isinstance(seen, Silent) and is_dead(seen.beat)):
        last = seen.last if isinstance(seen, Vacant) else seen.beat
        known = "" if last is None else f" last={last.status} leader={last.whereabouts}"
        raise InvalidUseError(
            f"nobody runs this job now: start it, or look at what it left with `tidegate checkpoints` job={job}{known}"
        )
    return seen.beat


def _glimpse(election: Election) -> Vacant | Alive:
    """Whoever has a lease has it: the line to them will tell."""
    beat = election.newest()
    return Vacant(beat) if beat is None or beat.is_over or is_dead(beat) else Alive(beat)


class OperatorLine:
    """A line to a leader. A context manager; calls block."""

    def __init__(
        self, store_url: str, job: str, *, token_file: str | None = None, tls: Tls | None = None, election: str | None = None
    ) -> None:
        secret = read_secret(token_path(store_url, job) if token_file is None else Path(token_file))
        self.beat = leader_of(store_url, job, SILENCE_MS, election)
        self._calls = Calls(lambda call: self._client.send(pb.NodeMessage(call=call)))
        self._heard = False
        self._client = control_client(self.beat.address, secret, self._said, self._lost, tls, SILENCE_MS)
        self._client.send(pb.NodeMessage(hello=pb.Hello(attendant=pb.OPERATOR)))

    def _lost(self, reason: Exception) -> None:
        hint = "" if self._heard else "; is this token (--token-file) the job's own?"
        self._calls.lost(RetryableError(f"the leader can't be asked: {reason}{hint} {self.beat.whereabouts}"), heard=self._heard)

    def _said(self, message: pb.CoordinatorMessage) -> None:
        self._heard = True
        if message.WhichOneof("body") == "reply":
            self._calls.replied(message.reply)

    def ask(self, verb: str, timeout_s: float = ANSWER_LIMIT_S, **arguments: Any) -> Any:
        """Ask, and wait for the answer. What the leader refuses is raised under its own name."""
        try:
            return self._calls.call(verb, **arguments).result(timeout_s)
        except TimeoutError as error:
            raise RetryableError(f"the leader has not answered for {timeout_s:.0f} s verb={verb}") from error

    def __enter__(self) -> OperatorLine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._client.close(0.5)


def ask(
    store_url: str,
    job: str,
    verb: str,
    *,
    token_file: str | None = None,
    tls: Tls | None = None,
    election: str | None = None,
    **arguments: Any,
) -> Any:
    """One question. Blocks until it is answered."""
    with OperatorLine(store_url, job, token_file=token_file, tls=tls, election=election) as line:
        return line.ask(verb, **arguments)


def is_running(store_url: str, job: str, election: str | None = None) -> LeaderBeat | None:
    """The job's leader, by one look at its heartbeat; ``None``: nobody, or somebody who has ended. Blocks for a few requests."""
    beat = election_of(store_url, job, election).newest()
    return None if beat is None or beat.is_over or is_dead(beat) else beat
