"""etcd's address, and what a client makes of servers that are slow, silent, wrong or gone. No etcd is needed."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from runtime_jobs import GatedSource, Jobs, MemorySink, counts, events

import tidegate as tg
from etcd_cluster import free_ports
from tidegate.cli.main import main
from tidegate.errors import InvalidUseError, RetryableError, StorageRefused
from tidegate.runtime.election import elected_at, open_election, to_describe
from tidegate.runtime.etcd import ANSWER_BYTES_MAX, CALL_S, Etcd, is_etcd, parse_etcd

SECRET = "s3cret/pass@word"
LOGIN = "etcd://me:s3cret%2Fpass%40word@127.0.0.1:1"


@pytest.mark.parametrize(
    ("url", "endpoints", "prefix"),
    [
        ("etcd://a", (("a", 2379),), "tidegate"),
        ("etcd://a:1,b:2,[::1]:3/team/x/", (("a", 1), ("b", 2), ("::1", 3)), "team/x"),
        ("ETCDS://a,b/%20x?ca=/c%20a.pem", (("a", 2379), ("b", 2379)), " x"),
    ],
)
def test_an_address_has_endpoints_and_a_prefix(url: str, endpoints: object, prefix: str) -> None:
    found = parse_etcd(url, {})
    assert (found.endpoints, found.prefix) == (endpoints, prefix)
    assert is_etcd(url) and parse_etcd(found.public, {}) == found == parse_etcd(found.complete, {})


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("etcd://", "every endpoint has a host"),
        ("etcd://a,,b", "every endpoint has a host"),
        ("etcd://a:0", "every endpoint has a host"),
        ("etcd://a:70000", "a port is a number"),
        ("etcd://a:x", "a port is a number"),
        ("etcd://[::1", "can't be read"),
        ("etcd://a?quorum=no", "there is no option 'quorum', only ca, cert, key"),
        ("etcd://a?ca=x", "certificates are for etcds://"),
        ("etcds://a?cert=x", "cert and key come together"),
        ("etcd://" + "a" * 5_000, "too long"),
        ("etcd://me:pw@192.0.2.1", "in the clear: use etcds://"),
    ],
)
def test_what_is_no_address_is_refused(url: str, told: str) -> None:
    with pytest.raises(InvalidUseError, match=told) as caught:
        parse_etcd(url, {})
    assert "pw" not in str(caught.value)


def test_certificates_that_are_not_there_are_refused() -> None:
    with pytest.raises(InvalidUseError, match="certificates for etcd can't be used"):
        Etcd(parse_etcd("etcds://a?ca=/nowhere.pem", {}))


def test_user_and_password_come_from_the_address_or_the_environment_and_are_never_shown() -> None:
    environment = {"TIDEGATE_ETCD_USER": "me", "TIDEGATE_ETCD_PASSWORD": SECRET}
    for url in (parse_etcd(LOGIN, {}), parse_etcd("etcd://127.0.0.1:1", environment)):
        assert (url.user, url.password) == ("me", SECRET)
        assert parse_etcd(url.complete, {}) == url
        assert not parse_etcd(url.public, {}).user
    election = open_election(LOGIN, "w")
    shown = f"{parse_etcd(LOGIN, {})!r} {Etcd(parse_etcd(LOGIN, {}))!r} {election!r} {to_describe(LOGIN)}"
    with pytest.raises(RetryableError) as caught:
        election.newest()
    shown += str(caught.value)
    assert "127.0.0.1" in shown and "s3cret" not in shown and "me:" not in shown


def test_a_job_stays_with_its_election_unless_told_otherwise() -> None:
    assert elected_at(None, None, "/store") == "/store"
    assert elected_at("store", "etcd://a", "/store") == "/store"
    assert elected_at(None, "etcd://a:2379/tidegate", "/store") == "etcd://a:2379/tidegate"
    assert elected_at("etcd://b", "etcd://a", "/store") == "etcd://b:2379/tidegate"
    with pytest.raises(InvalidUseError, match="an election is 'store', etcd"):
        elected_at("zk://a", None, "/store")


# -- servers ---------------------------------------------------------------------------------------------------------------


@contextmanager
def answering(answer: bytes, status: int = 200, connections: list[object] | None = None) -> Iterator[int]:
    """A server that answers everything like this, and keeps a list of who came."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            if connections is not None:
                connections.append(self.client_address)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def call(*ports: int) -> dict[str, Any] | None:
    return Etcd(parse_etcd(f"etcd://{','.join(f'127.0.0.1:{port}' for port in ports)}", {})).call("kv/range", {"key": "eA=="})


@pytest.mark.parametrize(
    ("answer", "status", "kind", "told"),
    [
        (b"404 page not found", 404, RetryableError, "no answer of etcd's JSON gateway status=404"),
        (b"[]", 200, RetryableError, "no answer of etcd's JSON gateway"),
        (b"[" * 100_000, 200, RetryableError, "no answer of etcd's JSON gateway"),
        (b" " * (ANSWER_BYTES_MAX + 100_000), 200, RetryableError, "the answer is too long"),
        (b'{"error":"etcdserver: no leader","code":14}', 503, RetryableError, "no leader"),
        (b'{"error":{"grpc_code":8,"message":"no space"}}', 200, RetryableError, "no space"),
        (b'{"error":"no","code":"x"}', 500, RetryableError, "no"),
        (b'{"error":"x","code":7,"message":"permission denied"}', 403, StorageRefused, "denied.*TIDEGATE_ETCD_USER"),
    ],
)
def test_an_answer_that_is_none_is_an_error_that_says_so(answer: bytes, status: int, kind: type[Exception], told: str) -> None:
    with answering(answer, status) as port, pytest.raises(kind, match=told):
        call(port)


def test_one_connection_serves_many_calls() -> None:
    came: list[object] = []
    with answering(b'{"kvs":[]}', connections=came) as port:
        etcd = Etcd(parse_etcd(f"etcd://127.0.0.1:{port}", {}))
        for _ in range(3):
            assert etcd.call("kv/range", {}) == {"kvs": []}
    assert len(came) == 1


def test_what_is_not_there_is_no_error() -> None:
    with answering(b'{"error":"x","code":5,"message":"requested lease not found"}', 404) as port:
        assert call(port) is None


def test_an_endpoint_that_is_gone_or_silent_costs_little_and_another_is_asked() -> None:
    with answering(b'{"kvs":[]}') as good, socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        assert call(free_ports(1)[0], silent.getsockname()[1], good) == {"kvs": []}
        assert time.monotonic() - began < CALL_S


def test_a_call_is_bounded_when_all_are_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with pytest.raises(RetryableError, match="etcd does not answer: timed out"):
            call(silent.getsockname()[1])
        assert time.monotonic() - began < CALL_S + 1


@pytest.mark.parametrize("value", ["!", base64.b64encode(b"{}").decode(), 7, None])
def test_a_heartbeat_that_cant_be_read_says_nothing(value: object) -> None:
    kvs = [{"key": base64.b64encode(b"tidegate/w/leader/1").decode(), "value": value}]
    for plain in ({"kvs": kvs}, {"kvs": [7]}, {"kvs": 7}, {"kvs": "x"}):
        with answering(json.dumps(plain).encode()) as port:
            assert open_election(f"etcd://127.0.0.1:{port}", "w").newest() is None


# -- people ----------------------------------------------------------------------------------------------------------------


def test_nobody_is_told_that_a_job_does_not_run_when_nobody_can_know(jobs: Jobs, capsys: pytest.CaptureFixture[str]) -> None:
    jobs.finish(tg.Pipeline("w", counts(tg.from_source(GatedSource(events(10)))).write(MemorySink())))
    gone = f"etcd://127.0.0.1:{free_ports(1)[0]}"
    assert main(["status", jobs.store, "w", "--election", gone]) == 1
    assert "status=UNKNOWN  problems=['etcd does not answer: [Errno 111]" in capsys.readouterr().out
    assert main(["jobs", jobs.store, "--election", gone]) == 0
    assert "w  UNKNOWN  epoch=" in capsys.readouterr().out
    assert main(["jobs", jobs.store, "--election", "zk://x"]) == 2


def test_a_start_says_that_nobody_can_tell_whether_the_job_runs(jobs: Jobs) -> None:
    pipeline = tg.Pipeline("w", counts(tg.from_source(GatedSource(events(10)))).write(MemorySink()))
    gone = f"etcd://127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(InvalidUseError, match="nobody can say whether this job runs already"):
        jobs.start(pipeline, election=gone)
    job = jobs.start(pipeline, election=gone, contend="takeover")
    assert job.await_termination(30) and job.status == "FINISHED"


def test_an_election_needs_a_job_that_others_could_lead(jobs: Jobs) -> None:
    pipeline = tg.Pipeline("w", counts(tg.from_source(GatedSource(events(10)))).write(MemorySink()))
    with pytest.raises(InvalidUseError, match="an election is for a job that others could lead"):
        jobs.start(pipeline, interval=None, election="etcd://a")
