"""How an object store's answers become ours: a server that says what the test wants stands in for S3."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import tidegate.store.objects as objects
from tidegate.errors import (
    CorruptDataError,
    InvalidUseError,
    RetryableError,
    StorageRefused,
    StorageUnavailable,
)
from tidegate.store.interface import Store
from tidegate.store.open import check_writable, open_store


class Script:
    """What the server answers per method, and what it was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.asked: list[str] = []
        self.hang = threading.Event()


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def endpoint(script: Script) -> Iterator[str]:
    class Server(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            script.asked.append(self.command)
            status, body = script.answers.get(self.command, (200, b""))
            if status == 0:
                script.hang.wait(20)
                return
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.send_header("etag", '"1"')
            self.send_header("last-modified", "Mon, 01 Jan 2024 00:00:00 GMT")
            self.end_headers()
            self.wfile.write(body if self.command != "HEAD" else b"")

        do_PUT = do_GET = do_HEAD = do_POST = do_DELETE = answer

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    script.hang.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def store(endpoint: str) -> Store:
    return open_at(endpoint)


def open_at(endpoint: str) -> Store:
    options = {"endpoint": endpoint, "access_key_id": "k", "secret_access_key": "s", "region": "us-east-1"}
    return open_store("s3://bucket/job", options=options)


@pytest.mark.parametrize("status", [500, 502, 503, 504, 429, 408])
def test_a_create_that_the_server_fails_is_unknown_and_sent_once(store, script, status: int) -> None:
    script.answers["PUT"] = (status, b"")
    with pytest.raises(RetryableError):
        store.create("log/0.json", b"x")
    assert script.asked == ["PUT"]


def test_a_create_without_an_answer_is_unknown(endpoint, script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "REQUEST_TIMEOUT", timedelta(seconds=0.3))
    script.answers["PUT"] = (0, b"")
    with pytest.raises(RetryableError):
        open_at(endpoint).create("log/0.json", b"x")
    assert script.asked == ["PUT"]


def test_a_refused_precondition_means_that_the_name_is_taken(store, script) -> None:
    script.answers["PUT"] = (412, b"")
    assert store.create("log/0.json", b"x") is False


def test_a_conflict_with_a_request_under_way_is_no_proof_that_the_name_is_taken(store, script) -> None:
    script.answers = {"PUT": (409, b"ConditionalRequestConflict"), "HEAD": (404, b"")}
    with pytest.raises(RetryableError):
        store.create("log/0.json", b"x")
    assert script.asked == ["PUT", "HEAD"]


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_what_the_caller_must_fix_is_an_invalid_use(store, script, status: int) -> None:
    script.answers["PUT"] = (status, b"")
    for call in (lambda: store.create("a", b"x"), lambda: store.put("a", b"x"), lambda: check_writable(store)):
        with pytest.raises(InvalidUseError):
            call()


def test_a_request_timeout_of_the_server_is_retryable_although_it_is_a_400(store, script) -> None:
    script.answers["PUT"] = (400, b"<Error><Code>RequestTimeout</Code></Error>")
    with pytest.raises(RetryableError):
        store.create("a", b"x")


def test_reads_and_overwrites_are_tried_again_for_a_bounded_time(endpoint, script, monkeypatch) -> None:
    monkeypatch.setattr(objects, "RETRIES", 2)
    store = open_at(endpoint)
    script.answers = {"PUT": (503, b""), "GET": (503, b"")}
    for call in (lambda: store.put("a", b"x"), lambda: store.get("a"), lambda: list(store.list(""))):
        with pytest.raises(RetryableError):
            call()
    assert script.asked == ["PUT"] * 3 + ["GET"] * 6


def test_a_range_that_the_server_refuses_is_corrupt(store, script) -> None:
    script.answers["GET"] = (416, b"")
    with pytest.raises(CorruptDataError):
        store.get_range("a", 5, 5)


def test_an_unreachable_store_is_named_in_one_clear_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_at("http://127.0.0.1:1")
    with pytest.raises(RetryableError):
        store.create("a", b"x")
    with pytest.raises(InvalidUseError, match=r"the store cannot be used: .*url=s3://bucket/job"):
        check_writable(store)


def test_a_store_that_creates_twice_is_refused(store, script) -> None:
    script.answers = {"GET": (200, b"another"), "POST": (200, b"<DeleteResult></DeleteResult>")}
    with pytest.raises(InvalidUseError, match="create an object twice"):
        check_writable(store)


def test_a_message_carries_no_query_and_no_debug_dump(store, script) -> None:
    script.answers["POST"] = (403, b"")
    with pytest.raises(InvalidUseError, match="bucket/job/a") as caught:
        store.put("a", b"x" * (17 << 20))
    assert "?" not in str(caught.value) and "Debug" not in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://key:secret@bucket/job/?x=1#f", "s3://bucket/job"),
        ("gs://bucket", "gs://bucket"),
    ],
)
def test_a_url_is_shown_without_secrets(url: str, shown: str) -> None:
    assert objects.bare_url(url) == shown


S3_ERROR = '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{}</Code><Message>no</Message></Error>'


@pytest.mark.parametrize(
    ("status", "body", "kind", "says"),
    [
        (403, S3_ERROR.format("RequestTimeTooSkewed"), StorageUnavailable, "RequestTimeTooSkewed, .* set the clock"),
        (400, S3_ERROR.format("ExpiredToken"), StorageUnavailable, "ExpiredToken, .* renew them"),
        (403, S3_ERROR.format("ExpiredToken"), StorageUnavailable, "ExpiredToken, .* renew them"),
        (400, S3_ERROR.format("SlowDown"), StorageUnavailable, "SlowDown, .* busy"),
        (403, S3_ERROR.format("AccessDenied"), StorageRefused, "AccessDenied, .* change the policy"),
        (403, S3_ERROR.format("SignatureDoesNotMatch"), StorageRefused, "check the credentials"),
        (404, S3_ERROR.format("NoSuchBucket"), StorageRefused, "is there such a bucket"),
        (403, "", StorageRefused, "403"),
        (401, '{"error": {"code": "InvalidAuthenticationToken"}}', StorageRefused, "InvalidAuthenticationToken"),
        (400, S3_ERROR.format("MalformedXML"), InvalidUseError, "MalformedXML"),
    ],
)
def test_an_answer_says_whether_it_may_pass_and_names_its_reason(store, script, status: int, body: str, kind, says: str) -> None:
    script.answers["PUT"] = (status, body.encode())
    with pytest.raises(InvalidUseError if kind is InvalidUseError else kind, match=says) as caught:
        store.create("a", b"x")
    assert type(caught.value) is kind
    assert "<" not in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(InvalidUseError, match=f"the store cannot be used: .*{says}"):
        check_writable(store)


def test_a_bucket_that_is_gone_says_nothing_about_the_objects_in_it(store, script) -> None:
    script.answers["GET"] = (404, S3_ERROR.format("NoSuchBucket").encode())
    with pytest.raises(StorageRefused):
        store.get("a")
    script.answers["GET"] = (404, S3_ERROR.format("NoSuchKey").encode())
    with pytest.raises(FileNotFoundError):
        store.get("a")
