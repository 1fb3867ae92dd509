"""Object stores by obstore: S3, Google Cloud Storage, Azure, and memory.

Reads and overwriting puts are tried again by the client for a bounded time. A create-only put is sent exactly
once: a retry could meet its own first try and take it for somebody else's. So its answers are yes, no, and
``StorageUnavailable`` for unknown.

An error is one of three: it may pass by itself (``StorageUnavailable``), the store refuses us until somebody has fixed something
(``StorageRefused``), or the call is wrong (``InvalidUseError``). The server's own code says more than the HTTP status: S3 reports
a clock that is off as 403 and an expired token as 400.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit, urlunsplit

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)
from obstore.store import MemoryStore, from_url

from tidegate.errors import (
    CorruptDataError,
    InvalidUseError,
    StorageRefused,
    StorageUnavailable,
    TidegateError,
)
from tidegate.store.interface import ObjectInfo, Piece
from tidegate.store.paths import check_length, check_path, check_prefix, check_range

CONNECT_TIMEOUT = timedelta(seconds=5)
REQUEST_TIMEOUT = timedelta(seconds=30)
RETRIES = 5
RETRY_TIMEOUT = timedelta(seconds=30)
PART_BYTES = 16 << 20
DELETE_AT_ONCE = 1000

_STATUS = re.compile(r"status code: (\d{3})")
_QUERY = re.compile(r"\?\S*")
_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,100})</Code>|\"(?:code|status|reason)\"\s*:\s*\"([A-Za-z0-9_.]{1,100})\"")

_CLOCK = "this machine's clock and the store's differ, set the clock"
_TOKEN = "the credentials have expired, renew them"
_BUSY = "the store is busy or in trouble"
_PASSING = {
    "RequestTimeTooSkewed": _CLOCK,
    "RequestExpired": _CLOCK,
    "RequestInTheFuture": _CLOCK,
    "ExpiredToken": _TOKEN,
    "ExpiredTokenException": _TOKEN,
    "TokenRefreshRequired": _TOKEN,
    "RequestTimeout": _BUSY,
    "RequestTimeoutException": _BUSY,
    "SlowDown": _BUSY,
    "Throttling": _BUSY,
    "ThrottlingException": _BUSY,
    "RequestLimitExceeded": _BUSY,
    "ServerBusy": _BUSY,
    "InternalError": _BUSY,
    "ServiceUnavailable": _BUSY,
    "OperationAborted": _BUSY,
}
"""Codes that pass, whatever the status, and what to do until then."""
_REFUSING = {
    "AccessDenied": "this is not permitted, change the policy or the credentials",
    "InvalidAccessKeyId": "the store does not know this key, check the credentials",
    "SignatureDoesNotMatch": "the secret does not belong to the key, check the credentials",
    "InvalidToken": "the session token is not valid, check the credentials",
    "NoSuchBucket": "there is no such bucket, create it or change the URL",
    "ContainerNotFound": "there is no such container, create it or change the URL",
    "AuthenticationFailed": "the store does not accept the credentials, check them and this machine's clock",
}
"""Codes of a store that will not have us as things are."""
_PASSING_STATUS = (408, 409, 412, 425, 429)
_REFUSING_STATUS = (401, 402, 403, 404, 423, 451)


class ObjectStore:
    """One bucket or container, below a prefix. ``once`` is the same client without retries."""

    def __init__(self, url: str, store: Any, once: Any) -> None:
        self._url = url
        self._store = store
        self._once = once

    @property
    def url(self) -> str:
        """The URL, without credentials and options."""
        return self._url

    def put(self, path: str, *pieces: Piece) -> None:
        """Large objects go up in parts and appear when the last one is there."""
        check_path(path)
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        with _translated("write", path):
            obstore.put(self._store, path, data, chunk_size=PART_BYTES, use_multipart=len(data) > PART_BYTES)

    def create(self, path: str, data: bytes) -> bool:
        """A conditional put, sent once."""
        check_path(path)
        with _translated("create", path):
            try:
                obstore.put(self._once, path, data, mode="create", use_multipart=False)
            except AlreadyExistsError as error:
                return self._lost_to_another(path, error)
        return True

    def get(self, path: str) -> bytes:
        """The complete object."""
        check_path(path)
        with _translated("read", path):
            return bytes(obstore.get(self._store, path).bytes())

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Part of the object, by a ranged request."""
        check_path(path)
        check_range(path, start, length)
        with _translated("read", path):
            if length == 0:
                obstore.head(self._store, path)
                return b""
            data = obstore.get_range(self._store, path, start=start, length=length)
        return check_length(path, bytes(data), length)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Pages are fetched while iterating; what is written meanwhile may or may not be in it."""
        bare = check_prefix(prefix)
        with _translated("list", prefix):
            for page in obstore.list(self._store, bare or None):
                for entry in page:
                    yield ObjectInfo(entry["path"], entry["size"])

    def delete(self, paths: Sequence[str]) -> None:
        """In batches, where the store has them."""
        for path in paths:
            check_path(path)
        for start in range(0, len(paths), DELETE_AT_ONCE):
            self._delete_some(paths[start : start + DELETE_AT_ONCE])

    def _delete_some(self, paths: Sequence[str]) -> None:
        with _translated("delete", paths[0]):
            try:
                obstore.delete(self._store, tuple(paths))
            except FileNotFoundError:
                # Some stores stop at the first object that is gone already: go on one by one.
                if len(paths) > 1:
                    for path in paths:
                        self._delete_some([path])

    def _lost_to_another(self, path: str, error: AlreadyExistsError) -> bool:
        """S3 answers 409 also when another request was under way and nothing was written: then look."""
        if _status(error) == 409:
            try:
                obstore.head(self._store, path)
            except FileNotFoundError:
                raise StorageUnavailable(f"two writers met, try again path={path}") from error
        return False


def open_object_store(url: str, options: Mapping[str, str] | None = None) -> ObjectStore:
    """The store at an s3://, gs:// or az:// URL.

    Credentials, endpoint and the like come from the options, else from the URL's query
    (``s3://bucket/path?endpoint=http://...&region=...``), else from the environment.
    """
    chosen = {**_query(url), **(options or {})}
    bare = urlunsplit((*urlsplit(url)[:3], "", ""))
    return ObjectStore(bare_url(url), _client(bare, chosen, RETRIES), _client(bare, chosen, 0))


def new_memory_store(name: str) -> ObjectStore:
    """An empty store in this process's memory."""
    memory = MemoryStore()
    return ObjectStore(f"memory://{name}", memory, memory)


def bare_url(url: str) -> str:
    """A URL without user, password, query and fragment: safe to show."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))


def _query(url: str) -> dict[str, str]:
    """The options in a URL's query. A user and password before the host would be taken for a bucket's name."""
    parts = urlsplit(url)
    if "@" in parts.netloc and parts.scheme in ("s3", "s3a", "gs"):
        raise InvalidUseError(
            f"credentials go into the environment or the URL's query, not before the bucket url={bare_url(url)}"
        )
    try:
        return dict(parse_qsl(parts.query, strict_parsing=True, max_num_fields=50)) if parts.query else {}
    except ValueError as error:
        raise InvalidUseError(f"the query of the store's URL is no list of key=value url={bare_url(url)}") from error


def _client(url: str, options: Mapping[str, str] | None, retries: int) -> Any:
    make: Any = from_url  # its overloads ask for the kind of store, which only the URL knows
    try:
        return make(
            url,
            config=dict(options) if options else None,
            client_options={
                "connect_timeout": CONNECT_TIMEOUT,
                "timeout": REQUEST_TIMEOUT,
                "allow_http": _endpoint(options).startswith("http://"),
            },
            retry_config={"max_retries": retries, "retry_timeout": RETRY_TIMEOUT},
        )
    except (BaseError, ValueError, TypeError) as error:
        raise InvalidUseError(f"cannot open the store: {_brief(error)} url={bare_url(url)}") from error


def _endpoint(options: Mapping[str, str] | None) -> str:
    """The endpoint that somebody set on purpose: only then is a connection in the clear allowed."""
    lowered = {key.lower(): value for key, value in (options or {}).items()}
    named = (lowered.get(key) for key in ("endpoint", "endpoint_url", "aws_endpoint", "aws_endpoint_url"))
    around = (os.environ.get(key) for key in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"))
    return next((value for value in (*named, *around) if value), "")


@contextmanager
def _translated(verb: str, path: str) -> Iterator[None]:
    """The only function where obstore's errors become ours."""
    try:
        yield
    except FileNotFoundError as error:
        if verb in ("read", "list") and _code(error) not in _REFUSING:  # no bucket says nothing about an object
            raise FileNotFoundError(f"there is no object path={path}") from error
        raise StorageRefused(f"cannot {verb} an object, is there such a bucket: {_brief(error)}") from error
    except (BaseError, ValueError, OSError) as error:
        raise _reaction(error, verb, path) from error


def _reaction(error: Exception, verb: str, path: str) -> TidegateError:
    if verb == "read" and (_status(error) == 416 or "Invalid range" in str(error)):
        return CorruptDataError(f"an object is shorter than it should be: {_brief(error)}", path=path)
    code = _code(error)
    advice = _PASSING.get(code) or _REFUSING.get(code)
    named = f"{code}, {advice}: " if advice else f"{code}: " if code else ""
    return _kind(error, code)(f"cannot {verb} an object: {named}{_brief(error)} path={path}")


def _kind(error: Exception, code: str) -> type[TidegateError]:
    if code in _PASSING:
        return StorageUnavailable
    status = _status(error)
    refused = isinstance(error, PermissionDeniedError | UnauthenticatedError) or status in _REFUSING_STATUS
    if refused or code in _REFUSING:
        return StorageRefused
    wrong = isinstance(error, InvalidPathError | NotSupportedError | UnknownConfigurationKeyError | ValueError)
    if wrong or (400 <= status < 500 and status not in _PASSING_STATUS):
        return InvalidUseError
    return StorageUnavailable


def _code(error: Exception) -> str:
    """The server's own name for what went wrong, from S3's XML or the JSON of others; empty if it gave none."""
    found = _CODE.search(str(error))
    return (found.group(1) or found.group(2)) if found else ""


def _status(error: Exception) -> int:
    found = _STATUS.search(str(error))
    return int(found.group(1)) if found else 0


def _brief(error: Exception) -> str:
    """The first line of a long report, without the body of the answer and without query strings: those may carry signatures."""
    line = str(error).split("\n", 1)[0].partition(": <")[0]
    return _QUERY.sub("", line)[:500]
