"""Jobs with their checkpoints on S3, over HTTP to a server on loopback."""

from __future__ import annotations

import logging
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from moto.server import ThreadedMotoServer

import tidegate as tg
from tidegate.api.job import Job
from tidegate.cli.main import main
from tidegate.errors import InvalidUseError
from tidegate.runtime.inspect import read_checkpoints
from tidegate.runtime.local import ThreadGang
from tidegate.runtime.start import JobOptions, launch_job
from tidegate.store.open import open_store

SECRET = "verysecret"
ROWS = 60_000


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    urllib.request.urlopen(urllib.request.Request(f"{address}/bucket", method="PUT")).close()
    yield address
    server.stop()


@pytest.fixture
def url(endpoint: str, request: pytest.FixtureRequest) -> str:
    """A URL of its own for each test, with everything that is needed in the query."""
    folder = request.node.name.replace("[", "-").replace("]", "")
    return f"s3://bucket/{folder}?endpoint={endpoint}&region=us-east-1&access_key_id=key&secret_access_key={SECRET}"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    numbers = range(ROWS)
    table = pa.table({"ts": list(numbers), "key": [n * 7919 % 500 for n in numbers], "value": [n % 100 for n in numbers]})
    pq.write_table(table, folder / "a.parquet", row_group_size=5_000)
    return folder


def per_key(data: Path) -> tg.Stream:
    rows = tg.read_parquet(data, event_time="ts")
    return rows.key_by("key").window(tg.tumbling("10s")).aggregate(n=tg.count(), total=tg.sum("value")).named("per_key")


def start(output: tg.Output, url: str, parallelism: int = 2, **options: Any) -> Job:
    pipeline = tg.Pipeline("job", output)
    checkpoint = tg.CheckpointConfig(interval="50ms")
    chosen = JobOptions(parallelism=parallelism, store=url, checkpoint=checkpoint, **options)
    return Job(launch_job(pipeline.physical(parallelism), ThreadGang(parallelism), chosen))


def test_a_pipeline_runs_stops_and_resumes_at_another_parallelism_with_its_checkpoints_on_s3(
    url: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    out = tmp_path / "out"
    slow = per_key(data).map_batches(_unchanged)
    job = start(slow.write_parquet(out), url)
    job.checkpoint()
    job.stop()
    assert job.status == "STOPPED"
    resumed = start(slow.write_parquet(out), url, parallelism=3)
    assert resumed.restored_from is not None
    assert resumed.await_termination(60) and resumed.status == "FINISHED"
    expected = duckdb.sql(
        f"select key, ts // 10000 * 10000 w, count(*), sum(value) from '{data}/*.parquet' group by all order by all"
    ).fetchall()
    found = duckdb.sql(f"select key, window_start, n, total from '{out}/*.parquet' order by all").fetchall()
    assert found == expected
    assert read_checkpoints(url).num_rows >= 2
    assert main(["verify", url]) == 0 and main(["gc", url, "--retain", "1"]) == 0
    assert main(["checkpoints", url, "--json"]) == 0
    printed = capsys.readouterr()
    assert SECRET not in printed.out + printed.err + caplog.text + repr(resumed._leader._setup) + open_store(url).url


def _unchanged(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


@pytest.mark.parametrize("change", ["option", "bucket", "endpoint"])
def test_a_path_that_can_not_be_written_is_refused_before_anything_starts(
    url: str, data: Path, tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.store.objects.RETRIES", 0)
    wrong = {
        "option": f"{url}&no_such_option=1",
        "bucket": url.replace("s3://bucket", "s3://missing"),
        "endpoint": url.replace("endpoint=http://127.0.0.1", "endpoint=http://127.0.0.1:1/x"),
    }[change]
    with pytest.raises(InvalidUseError) as caught:
        start(per_key(data).write_parquet(tmp_path / "out"), wrong)
    assert SECRET not in str(caught.value) and "secret_access_key" not in str(caught.value)


def test_collected_rows_do_not_outlive_the_process_on_s3_and_a_resume_says_so(url: str, data: Path, tmp_path: Path) -> None:
    assert start(per_key(data).collect(), url).await_termination(60)
    with pytest.raises(InvalidUseError, match="give spool="):
        start(per_key(data).collect(), url)


def test_with_a_spool_that_stays_a_collecting_job_resumes_on_s3(url: str, data: Path, tmp_path: Path) -> None:
    job = start(per_key(data).collect(), url, spool=str(tmp_path / "spool"))
    assert job.await_termination(60)
    again = start(per_key(data).collect(), url, spool=str(tmp_path / "spool"))
    assert again.await_termination(60) and again.status == "FINISHED"
    assert sum(again.collect().column("n").to_pylist()) == ROWS


def test_a_url_with_a_password_before_the_bucket_is_refused() -> None:
    with pytest.raises(InvalidUseError, match="credentials go into") as caught:
        open_store(f"s3://key:{SECRET}@bucket/x")
    assert SECRET not in str(caught.value)
    with pytest.raises(InvalidUseError, match="key=value"):
        open_store("s3://bucket/x?endpoint")
