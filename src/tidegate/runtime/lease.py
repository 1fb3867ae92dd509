"""Heartbeats as keys with a lease in etcd: when the leader no longer renews it, etcd deletes the key.

A renewal writes nothing. A key is written when what it says has changed: etcd keeps every write until somebody compacts it.
A leader's last word has no lease, so that nobody takes an end for a loss. Safety never depends on any of this: see
``core.failure.election``.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tidegate.core.failure.election import LeaderBeat
from tidegate.core.log.codec import decode, encode
from tidegate.errors import CorruptDataError, RetryableError
from tidegate.ids import Term
from tidegate.runtime.etcd import Etcd, EtcdUrl

TERM_DIGITS = 20
AFTER_DIGITS = ":"
"""The character after the digits: every key of a term is before it."""
GRANTS = 2
TTL_LEAST_S = 2
"""etcd itself grants none that is shorter than one and a half of its own election timeout, by default a second."""


class LeaseElection:
    """One key per term, ``{prefix}/{job}/leader/{term}``. One object announces for one leader."""

    def __init__(self, url: EtcdUrl, job: str, lease_ms: int) -> None:
        self._etcd = Etcd(url)
        self._folder = f"{url.prefix}/{job}/leader/"
        self._ttl_s = max(TTL_LEAST_S, -(-lease_ms // 1000))
        self._lock = threading.Lock()
        self._lease: str | None = None
        self._said: LeaderBeat | None = None
        self._last = (-1, 0)

    def __repr__(self) -> str:
        return f"LeaseElection({self._etcd!r}, {self._folder!r})"

    @property
    def lease_ms(self) -> int | None:
        """Whole seconds."""
        return 1000 * self._ttl_s

    def newest(self) -> LeaderBeat | None:
        """The last key, as a majority has it."""
        body = {"range_end": _text(self._folder + AFTER_DIGITS), "sort_order": "DESCEND", "sort_target": "KEY", "limit": 1}
        answer = self._call("kv/range", {"key": _text(self._folder)} | body)
        found = self._beat(answer)
        with self._lock:
            if self._said is not None and (found is None or found.term < self._said.term):
                self._said = None  # somebody has deleted it: say it again
        return found

    def announce(self, beat: LeaderBeat) -> None:
        """Renew the lease, and write what has changed. The last word stays."""
        with self._lock:
            if beat.order < self._last:
                return  # one thread's beat may be late: the last word of another must stay
            self._last = beat.order
            if beat.is_over:
                self._put(beat, None)
                self._lease, self._said = None, None  # nothing is attached to it any more
                return
            for _ in range(GRANTS):
                if self._renewed(beat.term) and self._same(beat):
                    return
                if self._put(beat, self._lease or self._granted()):
                    self._said = beat
                    return
                self._lease = None  # it expired meanwhile
        raise RetryableError("etcd let the lease expire while it was granted")

    def forget(self, below: Term) -> None:
        """Delete the keys of lower terms."""
        self._call("kv/deleterange", {"key": _text(self._folder), "range_end": _text(self._key(below))})

    # -- with the lock -----------------------------------------------------------------------------------------------

    def _renewed(self, term: Term) -> bool:
        """The lease is there for its full time again. A new term has a lease of its own."""
        if self._said is not None and self._said.term != term:
            self._lease = self._said = None
        if self._lease is None:
            return False
        answer = self._call("lease/keepalive", {"ID": self._lease})
        result = answer.get("result")
        if not isinstance(result, dict) or _number(result.get("TTL", 0)) <= 0:
            self._lease = self._said = None
        return self._lease is not None

    def _same(self, beat: LeaderBeat) -> bool:
        return self._said is not None and replace(beat, sequence=self._said.sequence) == self._said

    def _granted(self) -> str:
        """A new lease. Its number needs all of 64 bits, so it stays text."""
        lease = self._call("lease/grant", {"TTL": self._ttl_s}).get("ID")
        if not isinstance(lease, str) or not lease.lstrip("-").isdecimal():
            raise RetryableError("etcd's answer has no lease")
        self._lease, self._said = lease, None
        return lease

    def _put(self, beat: LeaderBeat, lease: str | None) -> bool:
        """False: there is no such lease."""
        attached = {} if lease is None else {"lease": lease}
        body = {"key": _text(self._key(beat.term)), "value": base64.b64encode(encode(beat)).decode()}
        return self._etcd.call("kv/put", body | attached) is not None

    # -- words ---------------------------------------------------------------------------------------------------------

    def _call(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._etcd.call(path, body) or {}

    def _key(self, term: Term) -> str:
        return f"{self._folder}{term:0{TERM_DIGITS}d}"

    def _beat(self, answer: dict[str, Any]) -> LeaderBeat | None:
        """A hint that can't be read says nothing."""
        try:
            found = answer.get("kvs") or []
            if not found:
                return None
            key = base64.b64decode(found[0]["key"]).decode()
            beat = decode(LeaderBeat, base64.b64decode(found[0]["value"]), key)
        except (CorruptDataError, LookupError, TypeError, ValueError):
            return None
        return beat if key == self._key(beat.term) else None


def _text(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _number(value: object) -> int:
    """etcd writes 64-bit numbers as text."""
    try:
        return int(value) if isinstance(value, str | int) else 0
    except ValueError:
        return 0
