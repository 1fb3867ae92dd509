"""A small client of etcd's v3 JSON gateway: several endpoints, TLS, a user. It knows nothing of leaders.

Every call is bounded in time and in bytes. Whatever may pass by itself is ``RetryableError``; what somebody has to fix is
``StorageRefused``. Names and passwords are in no message and no ``repr``.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from tidegate.errors import InvalidUseError, RetryableError, StorageRefused
from tidegate.runtime.address import is_loopback

SCHEMES = ("etcd", "etcds")
PORT = 2379
PREFIX = "tidegate"
FILES = ("ca", "cert", "key")
USER, PASSWORD = "TIDEGATE_ETCD_USER", "TIDEGATE_ETCD_PASSWORD"

ATTEMPT_S = 0.7
"""How long one endpoint may take before another is asked."""
CALL_S = 2.0
"""How long a call may take with all its attempts."""
ANSWER_BYTES_MAX = 1 << 20
URL_CHARS_MAX = 4_096
UNAUTHENTICATED = 16
NOT_FOUND = 5
INVALID = 3
FIX_IT = (INVALID, 7, 9, 12)
"""Codes that only somebody who changes the settings or the cluster removes: invalid, not permitted, not so now, not known."""


@dataclass(frozen=True, slots=True)
class EtcdUrl:
    """``etcd://host:2379,host:2379/prefix``, or ``etcds://`` for TLS with ``?ca=…&cert=…&key=…``."""

    endpoints: tuple[tuple[str, int], ...]
    prefix: str
    tls: bool
    files: Mapping[str, str]
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    @property
    def public(self) -> str:
        """The same without user and password."""
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.endpoints)
        query = "&".join(f"{name}={quote(path)}" for name, path in self.files.items())
        return f"{'etcds' if self.tls else 'etcd'}://{hosts}/{quote(self.prefix)}{'?' if query else ''}{query}"

    @property
    def complete(self) -> str:
        """The same with user and password, for a process whose environment has none. Not for people."""
        if not self.user:
            return self.public
        scheme, _, rest = self.public.partition("://")
        return f"{scheme}://{quote(self.user, safe='')}:{quote(self.password, safe='')}@{rest}"


def is_etcd(url: str) -> bool:
    """This is meant to be etcd's address."""
    return url.partition("://")[0].lower() in SCHEMES


def parse_etcd(url: str, environment: Mapping[str, str] = os.environ) -> EtcdUrl:
    """Check an address. User and password come from it, else from the environment."""
    if len(url) > URL_CHARS_MAX:
        raise InvalidUseError(f"etcd's address is too long chars={len(url)} most={URL_CHARS_MAX}")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _malformed("it can't be read") from None
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    found = EtcdUrl(
        endpoints=tuple(_endpoint(host) for host in hosts.split(",")),
        prefix=unquote(parts.path).strip("/") or PREFIX,
        tls=parts.scheme.lower() == "etcds",
        files=_files(parts.query),
        user=unquote(user) if login else environment.get(USER, ""),
        password=unquote(password) if login else environment.get(PASSWORD, ""),
    )
    return _checked(found)


def _malformed(why: str) -> InvalidUseError:
    return InvalidUseError(f"etcd's address is etcd://host:2379,host:2379/prefix, or etcds:// with TLS: {why}")


def _endpoint(text: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise _malformed("a port is a number up to 65535") from None
    if not host or port == 0:
        raise _malformed("every endpoint has a host and a port")
    return host, PORT if port is None else port


def _files(query: str) -> dict[str, str]:
    given = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted(given.keys() - set(FILES))
    if unknown:
        raise _malformed(f"there is no option {unknown[0]!r}, only {', '.join(FILES)}")
    return given


def _checked(url: EtcdUrl) -> EtcdUrl:
    if url.files and not url.tls:
        raise _malformed("certificates are for etcds://")
    if ("cert" in url.files) != ("key" in url.files):
        raise _malformed("cert and key come together")
    if url.password and not url.tls and not all(is_loopback(host) for host, _ in url.endpoints):
        raise InvalidUseError("the password for etcd would cross the network in the clear: use etcds://")
    return url


def _context(url: EtcdUrl) -> ssl.SSLContext | None:
    if not url.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=url.files.get("ca"))
        if "cert" in url.files:
            context.load_cert_chain(url.files["cert"], url.files["key"])
    except (OSError, ssl.SSLError) as error:
        raise InvalidUseError(f"the certificates for etcd can't be used: {error} url={url.public}") from error
    return context


class _Refused(Exception):
    """An answer of etcd that is no success."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Etcd:
    """Calls block for at most ``CALL_S``; any thread, one call at a time. The endpoint that answered last is asked first."""

    def __init__(self, url: EtcdUrl) -> None:
        self.url = url
        self._tls = _context(url)
        self._lock = threading.Lock()
        self._first = 0
        self._open: list[http.client.HTTPConnection] = []
        weakref.finalize(self, _close, self._open)
        self._token: str | None = None

    def __repr__(self) -> str:
        return f"Etcd({self.url.public!r})"

    def call(self, path: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
        """What the cluster answers; ``None``: there is no such thing, as of a lease that has expired."""
        deadline = time.monotonic() + CALL_S
        if not self._lock.acquire(timeout=CALL_S):
            raise RetryableError(f"etcd is busy with another call url={self.url.public}")
        try:
            return self._call(path, body, deadline)
        except _Refused as error:
            if error.code == NOT_FOUND:
                return None
            raise self._translated(error) from None
        finally:
            self._lock.release()

    def _translated(self, error: _Refused) -> Exception:
        if error.code == UNAUTHENTICATED or error.code in FIX_IT:
            hint = f"give the user and password of one who may read and write below {self.url.prefix}/ ({USER}, {PASSWORD})"
            return StorageRefused(f"etcd refuses: {error}; {hint} url={self.url.public}")
        return RetryableError(f"etcd can't do it now: {error} url={self.url.public}")

    def _call(self, path: str, body: Mapping[str, Any], deadline: float) -> dict[str, Any]:
        """One after another of the endpoints, until one answers."""
        count, why = len(self.url.endpoints), "no time"
        for attempt in range(2 * count):
            if time.monotonic() >= deadline:
                break
            try:
                return self._authenticated(path, body, deadline)
            except _Refused as error:
                if error.code in FIX_IT or error.code in (NOT_FOUND, UNAUTHENTICATED):
                    raise
                why = str(error)
            except (OSError, http.client.HTTPException, ValueError) as error:
                why = str(error) or type(error).__name__
            self._disconnect()
            self._first = (self._first + 1) % count
            if attempt + 1 == count:
                time.sleep(max(0.0, min(0.1, deadline - time.monotonic())))
        raise RetryableError(f"etcd does not answer: {why} url={self.url.public}")

    def _authenticated(self, path: str, body: Mapping[str, Any], deadline: float) -> dict[str, Any]:
        if not self.url.user:
            return self._request(path, body, deadline)
        if self._token is not None:
            try:
                return self._request(path, body, deadline)
            except _Refused as error:
                if error.code != UNAUTHENTICATED:
                    raise
                self._token = None  # it has expired
        login = {"name": self.url.user, "password": self.url.password}
        self._token = str(self._request("auth/authenticate", login, deadline)["token"])
        return self._request(path, body, deadline)

    def _request(self, path: str, body: Mapping[str, Any], deadline: float) -> dict[str, Any]:
        limit = min(deadline, time.monotonic() + ATTEMPT_S)
        connection = self._connected(limit)
        headers = {"Content-Type": "application/json"} | ({} if self._token is None else {"Authorization": self._token})
        connection.request("POST", f"/v3/{path}", json.dumps(body), headers)
        response = connection.getresponse()
        data = self._read(response, limit)
        if response.will_close:
            self._disconnect()
        plain = _parsed(data, response.status)
        if response.status != http.HTTPStatus.OK or "error" in plain:
            raise _refusal(response.status, plain)
        return plain

    def _connected(self, limit: float) -> http.client.HTTPConnection:
        left = max(0.01, limit - time.monotonic())
        if not self._open:
            host, port = self.url.endpoints[self._first]
            self._open.append(
                http.client.HTTPConnection(host, port, timeout=left)
                if self._tls is None
                else http.client.HTTPSConnection(host, port, timeout=left, context=self._tls)
            )
            self._open[0].connect()
        self._open[0].sock.settimeout(left)
        return self._open[0]

    def _read(self, response: http.client.HTTPResponse, limit: float) -> bytes:
        parts, size = [], 0
        while part := response.read1(1 << 16):
            parts.append(part)
            size += len(part)
            if size > ANSWER_BYTES_MAX or time.monotonic() > limit:
                raise ValueError("the answer is too long")
        response.close()  # it is read to its end: the connection is free for the next call
        return b"".join(parts)

    def _disconnect(self) -> None:
        _close(self._open)


def _close(connections: list[http.client.HTTPConnection]) -> None:
    while connections:
        connections.pop().close()


def _parsed(data: bytes, status: int) -> dict[str, Any]:
    try:
        plain = json.loads(data)
    except (ValueError, RecursionError):
        plain = None
    if not isinstance(plain, dict):
        text = data[:100].decode("ascii", "replace").strip()
        if status == http.HTTPStatus.BAD_REQUEST:
            raise _Refused(INVALID, text)
        raise ValueError(f"this is no answer of etcd's JSON gateway status={status} answer={text!r}")
    return plain


def _refusal(status: int, plain: dict[str, Any]) -> _Refused:
    """Unary calls have code and message at the top, streams below ``error``."""
    inner = plain.get("error")
    about = inner if isinstance(inner, dict) else plain
    code = about.get("code", about.get("grpc_code", -1))
    text = about.get("message", inner if isinstance(inner, str) else f"status {status}")
    return _Refused(code if isinstance(code, int) else -1, str(text)[:200])
