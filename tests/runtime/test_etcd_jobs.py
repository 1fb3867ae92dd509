"""Jobs whose leaders are found through a real cluster of etcd: it may lose members, or its majority; a job never cares."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from runtime_jobs import GatedSource, Jobs, MemorySink, counts, events, expected_counts, found_counts, until
from test_failover import Leading, Process, pacing

import tidegate as tg
from certificates import Authority
from etcd_cluster import Cluster
from tidegate.api.job import Job
from tidegate.cli.main import main
from tidegate.core.failure.election import LEADER_TIMEOUT_MS, LeaderBeat
from tidegate.errors import InvalidUseError, RetryableError, StorageRefused
from tidegate.runtime.description import read_description
from tidegate.runtime.election import open_election
from tidegate.runtime.etcd import Etcd, parse_etcd
from tidegate.runtime.operate import ask
from tidegate.store.open import absolute_url, open_store

pytestmark = [pytest.mark.etcd, pytest.mark.slow]
BEAT = LeaderBeat(
    term=3, sequence=1, leader="a", role="driver", host="elsewhere", pid=7, process="", since_ms=5, address="h:1", gang=2,
    status="RUNNING", has_driver=True,
)  # fmt: skip


@pytest.fixture
def election(etcd_cluster: Cluster, tmp_path: Path) -> Iterator[str]:
    yield etcd_cluster.url(tmp_path.name)
    etcd_cluster.restart_all()


class Running:
    """A job that reads a few rows all the time."""

    def __init__(self, jobs: Jobs, election: str | None, **options: object) -> None:
        self.table = events(60_000)
        self.source, self.sink = GatedSource(self.table, rows_per_poll=20, allowed=1_000), MemorySink()
        self.jobs = jobs
        self.job = self.start(election, **options)
        self._over = threading.Event()
        self._thread = pacing(self.source, self._over)
        until(lambda: self.job.metrics()["checkpoints_committed"] >= 2)

    def start(self, election: str | None, **options: object) -> Job:
        pipeline = tg.Pipeline("w", counts(tg.from_source(self.source)).write(self.sink))
        return self.jobs.start(pipeline, interval="200ms", election=election, **options)  # type: ignore[arg-type]

    def commits_go_on(self, more: int = 3) -> None:
        before = len(self.jobs.manifests("w"))
        until(lambda: len(self.jobs.manifests("w")) >= before + more, "more commits")

    def finish_exactly(self) -> None:
        self._over.set()
        self._thread.join()
        self.source.allow()
        assert self.job.await_termination(30)
        assert self.job.status == "FINISHED"
        assert found_counts(self.sink) == expected_counts(self.table)

    def close(self) -> None:
        self._over.set()
        self._thread.join()


@pytest.fixture
def running(jobs: Jobs, election: str) -> Iterator[Running]:
    made = Running(jobs, election)
    yield made
    made.close()


def commits_after(running: Running, number: int) -> float:
    """Seconds from a coordinator's loss to the next leader's commit."""
    jobs = running.jobs
    process = Process(jobs.store, "w", "--takeover")
    try:
        before = jobs.view("w").term or 0
        term = until(lambda: (jobs.view("w").term or 0) > before and jobs.view("w").term, "the coordinator's term")
        until(lambda: sum(m.term == term for m in jobs.manifests("w")) >= 3, "its checkpoints")
        process.kill(number)
        began = time.monotonic()
        until(lambda: any(m.term > term for m in jobs.manifests("w")), "a checkpoint of the next leader")
        return time.monotonic() - began
    finally:
        process.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "paused"])
def test_a_lost_coordinator_is_replaced_within_five_seconds(running: Running, number: int) -> None:
    took_s = commits_after(running, number)
    print(f"next commit after {took_s:.2f} s")
    assert took_s < (5 if number == signal.SIGKILL else 6)
    running.finish_exactly()
    assert open_election(running.jobs.store, "w").newest() is None, "nothing was said in the store"


def cut_off(election: str) -> LeaderBeat | None:
    """Let the driver's lease expire as if it had no way to etcd; gives the coordinator's heartbeat once that leads."""
    etcd, beat = Etcd(parse_etcd(election)), open_election(election, "w").newest()
    if beat is None or beat.role == "coordinator":
        return beat
    leases = etcd.call("lease/leases", {})
    for each in (leases or {}).get("leases", []):
        etcd.call("lease/revoke", {"ID": each["ID"]})
    return None


def test_a_standby_coordinator_takes_over_when_the_lease_has_gone(running: Running, election: str) -> None:
    standby = Process(running.jobs.store, "w")
    try:
        assert standby.process.stdout is not None and "standing by" in standby.process.stdout.readline()
        before = running.jobs.view("w").term or 0
        assert until(lambda: cut_off(election), "it leads").term > before
        running.commits_go_on()
    finally:
        standby.kill(signal.SIGTERM)
        standby.close()
    running.finish_exactly()


def test_a_member_of_the_cluster_may_be_lost(running: Running, etcd_cluster: Cluster, election: str) -> None:
    for member in (0, 1):
        etcd_cluster.kill(member)
        running.commits_go_on()
        beat = until(lambda: newest_or_none(election), "the cluster's answer")
        assert beat.term == running.jobs.view("w").term
        etcd_cluster.restart_all()
    running.finish_exactly()


def newest_or_none(election: str) -> LeaderBeat | None:
    try:
        return open_election(election, "w").newest()
    except RetryableError:
        return None


def test_a_lost_majority_stops_nobody_who_leads(
    running: Running, etcd_cluster: Cluster, election: str, caplog: pytest.LogCaptureFixture
) -> None:
    leading = Leading(running.jobs.store, "w")
    try:
        until(lambda: leading.leader.metrics()["checkpoints_committed"] >= 2, "checkpoints of the coordinator")
        term = running.jobs.view("w").term
        etcd_cluster.kill(0)
        etcd_cluster.kill(1)
        until(lambda: "the heartbeat can't be written, the job goes on" in caplog.text, "a warning")
        back = time.monotonic() + LEADER_TIMEOUT_MS / 1000 + 1
        while time.monotonic() < back:
            running.commits_go_on()
        etcd_cluster.restart_all()
        until(lambda: "heartbeats are written again" in caplog.text, "heartbeats")
        running.commits_go_on(5)
        assert (beat := newest_or_none(election)) is not None and beat.term == term
        assert running.jobs.view("w").term == term, "nobody took over meanwhile"
        running.finish_exactly()
    finally:
        leading.close()


def test_whoever_has_to_do_with_a_job_finds_its_election(
    running: Running, election: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store = absolute_url(running.jobs.store)
    described = read_description(open_store(store), "w")
    assert described is not None and described.election == election
    for given in (None, "store"):
        with pytest.raises(InvalidUseError, match="this job runs already"):
            running.start(given)
    assert ask(store, "w", "status")["status"] == "RUNNING"
    assert main(["jobs", store]) == 0 and "led by driver process" in capsys.readouterr().out
    assert main(["status", store, "w", "--election", election]) == 0
    assert main(["stop", store, "w"]) == 0
    assert running.job.await_termination(30) and running.job.status == "STOPPED"
    with pytest.raises(InvalidUseError, match=r"nobody runs this job now.*last=STOPPED"):
        ask(store, "w", "status")
    running.job = running.start("store")
    moved = read_description(open_store(store), "w")
    assert moved is not None and moved.election is None
    running.finish_exactly()


def test_a_renewal_writes_nothing(election: str) -> None:
    leader, etcd = open_election(election, "w"), Etcd(parse_etcd(election))

    def revision() -> str:
        answer = etcd.call("kv/range", {"key": "eA=="})
        assert answer is not None
        return str(answer["header"]["revision"])

    leader.announce(BEAT)
    before = revision()
    for sequence in range(2, 6):
        leader.announce(replace(BEAT, sequence=sequence))
    assert revision() == before, "etcd keeps every write until somebody compacts it"


def written(folder: Path, tls: tg.Tls) -> dict[str, Path]:
    """The PEM files of a certificate."""
    folder.mkdir()
    paths = {name: folder / f"{name}.pem" for name in ("ca", "cert", "key")}
    for path, pem in zip(paths.values(), (tls.authority, tls.certificate, tls.key), strict=True):
        assert isinstance(pem, bytes)
        path.write_bytes(pem)
    return paths


def test_a_user_with_a_password_and_certificates(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = Authority()
    named = written(tmp_path / "named", authority.tls("127.0.0.1"))
    plain = written(tmp_path / "plain", authority.tls("127.0.0.1", subject=""))
    flags = {"trusted-ca-file": "ca", "cert-file": "cert", "key-file": "key"}
    extra = ["--client-cert-auth", *(f"--{flag}={named[name]}" for flag, name in flags.items())]
    cluster = Cluster(tmp_path, 1, scheme="https", extra=extra)

    def url(login: str = "", files: dict[str, Path] = plain) -> str:
        query = "&".join(f"{name}={path}" for name, path in files.items())
        return f"etcds://{login}127.0.0.1:{cluster.ports[0]}/p?{query}"

    try:
        cluster.await_ready(url())
        with pytest.raises(RetryableError, match="etcd does not answer"):
            open_election(url(files={"ca": plain["ca"]}), "w").newest()
        admin = Etcd(parse_etcd(url(), {}))
        admin.call("auth/user/add", {"name": "root", "password": "s3cret"})
        admin.call("auth/user/grant", {"user": "root", "role": "root"})
        admin.call("auth/enable", {})
        caplog.set_level(logging.DEBUG)
        for refused in (url(), url("root:wr0ng@"), url("root:s3cret@", named)):
            with pytest.raises(StorageRefused, match=r"etcd refuses: .*TIDEGATE_ETCD_USER") as caught:
                open_election(refused, "w").newest()
            assert "wr0ng" not in str(caught.value) and "s3cret" not in str(caught.value)
        election = open_election(url("root:s3cret@"), "w")
        election.announce(BEAT)
        election._etcd._token = "expired.1"  # type: ignore[attr-defined]
        assert election.newest() == BEAT
        assert "s3cret" not in caplog.text
    finally:
        cluster.close()
