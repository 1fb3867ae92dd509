"""Where a job's channels listen, and TLS on all of them: the same jobs, with real sockets, on threads."""

from __future__ import annotations

import logging
import socket
import ssl
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from runtime_jobs import GatedSource, MemorySink, events

import tidegate as tg
from tidegate.api.job import Job
from tidegate.core.failure.restart import RestartPolicy
from tidegate.errors import InvalidUseError, JobFailedError
from tidegate.runtime.address import Listening, is_loopback, is_this_machine, node_listening
from tidegate.runtime.host import Launch, run_node
from tidegate.runtime.local import ThreadGang
from tidegate.runtime.start import JobOptions, launch_job
from tidegate.wire.frames import FrameType, header
from tidegate.wire.tcp import TcpTransport

sys.path.append(str(Path(__file__).resolve().parent.parent))

from certificates import Authority

WAIT_S = 30.0
ONCE = RestartPolicy(limit=0, user_error_limit=0)
ROWS = 2_000
CLAIM = header(FrameType.HELLO, 84)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def run(run_one: Callable[[Launch, int], str] = run_node, **options: object) -> int:
    """Run a job with an exchange on two nodes; returns how many rows its sink has."""
    sink = MemorySink()
    stream = tg.from_source(GatedSource(events(ROWS)))
    counts = stream.key_by("key").window(tg.tumbling("1s")).aggregate(n=tg.count())
    plan = tg.Pipeline("network", counts.write(sink)).physical(2)
    job = Job(launch_job(plan, ThreadGang(2, run_one), JobOptions(parallelism=2, restarts=ONCE, **options)))
    assert job.await_termination(WAIT_S), job.status
    return sum(sum(batch["n"].to_pylist()) for _, batches in sink.visible.values() for batch in batches)


# -- TLS -----------------------------------------------------------------------------------------------------------


def test_a_job_runs_under_tls(authority: Authority) -> None:
    assert run(tls=authority.tls("127.0.0.1")) == ROWS


def test_one_name_is_good_for_every_address(authority: Authority) -> None:
    assert run(tls=authority.tls("tidegate.internal", name="tidegate.internal")) == ROWS


def test_certificates_are_read_from_files(authority: Authority, tmp_path: Path) -> None:
    assert run(tls=in_files(authority.tls("127.0.0.1"), tmp_path)) == ROWS


def test_no_byte_of_the_rows_is_sent_in_the_clear(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    whole = socket.socket.sendmsg

    def spied(self: socket.socket, buffers: list[memoryview]) -> int:
        sent.extend(map(bytes, buffers))
        return whole(self, buffers)

    monkeypatch.setattr(socket.socket, "sendmsg", spied)
    assert run() == ROWS
    assert CLAIM in b"".join(sent)  # the spy sees what a plain job sends
    sent.clear()
    assert run(tls=authority.tls("127.0.0.1")) == ROWS
    assert sent
    assert CLAIM not in b"".join(sent)


@pytest.mark.parametrize("what", ["another address", "another authority", "a stranger's certificate", "no certificate"])
def test_a_node_that_is_not_trusted_does_not_join(authority: Authority, what: str) -> None:
    strangers = {
        "another address": authority.tls("127.0.0.1"),
        "another authority": Authority("somebody else").tls("127.0.0.1"),
        "a stranger's certificate": stranger_of(authority),
        "no certificate": None,
    }
    driver = authority.tls("192.0.2.77" if what == "another address" else "127.0.0.1")

    def stranger(launch: Launch, index: int) -> str:
        return run_node(replace(launch, tls=strangers[what]), index)

    with pytest.raises(JobFailedError, match=r"never heard from the driver: .*address=127\.0\.0\.1:\d+"):
        run(stranger, tls=driver)


def test_a_peer_that_is_not_trusted_gets_no_channel(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Both may talk to the driver, but one shows its peer a certificate of somebody else. Which of them says so first is luck."""
    contexts = tg.Tls.contexts
    mine = iter((authority.tls("127.0.0.1"), stranger_of(authority)))
    monkeypatch.setattr(tg.Tls, "contexts", lambda self: contexts(next(mine)))
    with pytest.raises(JobFailedError):
        run(tls=authority.tls("127.0.0.1"))
    assert "refused a data connection: no trusted connection with the peer" in caplog.text


@pytest.mark.parametrize("who", ["a stranger", "nobody", "one of us"])
def test_a_node_speaks_only_to_who_shows_a_certificate(authority: Authority, who: str) -> None:
    client = ssl.create_default_context(cadata=authority.pem.decode())
    if who != "nobody":
        own = authority.tls("127.0.0.1") if who == "one of us" else stranger_of(authority)
        client = own.contexts().client
    tls = authority.tls("127.0.0.1").contexts()
    transport = TcpTransport(Silence(), secret=bytes(32), gang=1, tls=tls)
    host, _, port = transport.address.rpartition(":")
    words = b""
    try:
        with (
            socket.create_connection((host, int(port)), timeout=WAIT_S) as plain,
            suppress(ssl.SSLError, ConnectionError),
            client.wrap_socket(plain, server_hostname=host) as line,
        ):
            words = line.recv(1024)
    finally:
        transport.close()
    assert (b"tidegate1" in words) is (who == "one of us")


class Silence:
    """No channel is ever open, so nothing is reported."""


def stranger_of(authority: Authority) -> tg.Tls:
    """Trusts the authority, but its own certificate is of another."""
    return replace(Authority("somebody else").tls("127.0.0.1"), authority=authority.pem)


def test_what_can_not_be_used_is_refused_with_its_name(authority: Authority, tmp_path: Path) -> None:
    good = authority.tls("127.0.0.1")
    missing = tmp_path / "nowhere.pem"
    with pytest.raises(InvalidUseError, match=r"cannot read the key for TLS: .* path=.*nowhere\.pem"):
        replace(good, key=missing).contexts()
    another = authority.tls("127.0.0.1").key
    for broken in ({"key": another}, {"certificate": b"?"}, {"authority": b""}):
        with pytest.raises(InvalidUseError, match="these can't be used together for TLS"):
            replace(good, **broken).contexts()
    with pytest.raises(InvalidUseError, match="the certificate for TLS is a path or PEM bytes given=NoneType"):
        replace(good, certificate=None).contexts()


def test_a_key_with_a_password_is_refused_and_nobody_is_asked(authority: Authority) -> None:
    good = authority.tls("127.0.0.1")
    key = serialization.load_pem_private_key(bytes(good.key), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    with pytest.raises(InvalidUseError, match="its key without a password"):
        replace(good, key=locked).contexts()


@pytest.mark.parametrize("encrypted", [True, False])
def test_keys_and_secrets_are_in_no_log_and_no_repr(
    authority: Authority, caplog: pytest.LogCaptureFixture, tmp_path: Path, encrypted: bool
) -> None:
    seen: list[Launch] = []

    def spied(launch: Launch, index: int) -> str:
        seen.append(launch)
        for port in (int(launch.coordinator.rpartition(":")[2]),):  # strangers make both ends say why they refuse them
            with socket.create_connection(("127.0.0.1", port)) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        return run_node(launch, index, host="127.0.0.1")

    tls = authority.tls("127.0.0.1")
    options = {"tls": tls} if encrypted else {"allow_plaintext": True}
    with caplog.at_level(logging.DEBUG):
        run(spied, bind="0.0.0.0", advertise="127.0.0.1", **options)
    text = caplog.text + repr(seen[0]) + repr(tls) + repr(JobOptions(2, store="s3://b?key=hidden", **options))
    assert "PRIVATE KEY" not in text and "hidden" not in text
    assert repr(seen[0].secret)[2:-1] not in text
    assert seen[0].secret.hex() not in text
    assert repr(tls) == "Tls(certificate=PEM, key=PEM, authority=PEM, name=None)"


def in_files(tls: tg.Tls, folder: Path) -> tg.Tls:
    paths = {}
    for what in ("certificate", "key", "authority"):
        paths[what] = folder / f"{what}.pem"
        paths[what].write_bytes(getattr(tls, what))
    return tg.Tls(**paths)


# -- addresses -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bind", ["0.0.0.0", "127.0.0.1", "::1", "localhost"])
def test_a_job_listens_where_it_is_told(authority: Authority, bind: str) -> None:
    """Certificates are made out to the advertised address, so none of another kind was dialled."""
    advertised = {"0.0.0.0": "127.0.0.1", "::1": "::1"}.get(bind, bind)

    def node(launch: Launch, index: int) -> str:
        return run_node(launch, index, host=advertised)

    assert run(node, bind=bind, advertise=advertised, tls=authority.tls(advertised)) == ROWS


def test_where_a_node_listens() -> None:
    assert node_listening("127.0.0.1", "worker-3") == Listening("127.0.0.1", "127.0.0.1")
    assert node_listening("0.0.0.0", "worker-3") == Listening("0.0.0.0", "worker-3")
    assert node_listening("::", "fd00::9") == Listening("::", "[fd00::9]")
    assert node_listening("10.1.2.3", "10.1.2.4") == Listening("10.1.2.4", "10.1.2.4")
    assert node_listening("10.1.2.3", None) == Listening("10.1.2.3", "10.1.2.3")


def test_what_is_this_machine() -> None:
    assert is_loopback("localhost") and is_loopback("::1") and is_loopback("127.0.0.9")
    assert not is_loopback("0.0.0.0") and not is_loopback("192.0.2.77") and not is_loopback("no.such.host.invalid")
    assert is_this_machine("127.0.0.1")
    assert not is_this_machine("203.0.113.9") and not is_this_machine("no.such.host.invalid")


def test_an_address_that_is_not_ours_is_refused_before_anything_starts() -> None:
    with pytest.raises(InvalidUseError, match=r"cannot listen for nodes: .* bind=203\.0\.113\.9"):
        run(bind="203.0.113.9", allow_plaintext=True)


# -- in the clear --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bind", ["0.0.0.0", "::", "192.0.2.77"])
def test_a_job_off_loopback_without_tls_needs_an_explicit_yes(bind: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidUseError, match=rf"give tls=tg\.Tls\(\.\.\.\), or allow_plaintext=True .* bind={bind}$"):
        run(bind=bind, store=str(tmp_path / "store"), checkpoint=tg.CheckpointConfig(interval="1s"))
    assert list(tmp_path.iterdir()) == []


def test_a_job_in_the_clear_off_loopback_has_every_byte_of_its_channels_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    sealed: list[bool] = []
    make = TcpTransport.__init__

    def spied(self: TcpTransport, *arguments: object, **options: object) -> None:
        sealed.append(bool(options["sealed"]))
        make(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(TcpTransport, "__init__", spied)

    def node(launch: Launch, index: int) -> str:
        return run_node(launch, index, host="127.0.0.1")

    assert run(node, bind="0.0.0.0", advertise="127.0.0.1", allow_plaintext=True) == ROWS
    assert sealed == [True, True]
    sealed.clear()
    assert run() == ROWS
    assert sealed == [False, False]


def test_nodes_that_can_not_reach_the_driver_say_where_they_tried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]

    def lost(launch: Launch, index: int) -> str:
        return run_node(replace(launch, coordinator=f"127.0.0.1:{port}"), index)

    with pytest.raises(JobFailedError, match=rf"node \d on .* never heard from the driver: .*address=127\.0\.0\.1:{port}"):
        run(lost)
