"""Spark's side of DataFrame sources: writes a DataFrame's rows into the job's spool, once or micro-batch by micro-batch."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery

from tidegate.connectors.framespool import BatchAppender, Chunk, Spool, write_chunks
from tidegate.core.duration import Duration, parse_duration_ms
from tidegate.core.failure.patience import Patience
from tidegate.core.failure.restart import RestartAfter, RestartVerdict, StopRestarting
from tidegate.core.log.codec import decode, encode
from tidegate.errors import WAITED_FOR, InvalidUseError, ThreadDied, TidegateError
from tidegate.plan.capabilities import OnFailure
from tidegate.store.objects import bare_url
from tidegate.store.open import open_store
from tidegate.supervise import supervised

log = logging.getLogger("tidegate")

RESULT = "chunk string"
QUERY_FAILURES_MAX = 5
FIRST_PAUSE_MS = 500
STORAGE_WAIT_MS = 600_000
STOP_WAIT_S = 30.0
AVAILABLE_NOW = "available_now"

INTERRUPTED = "py4j.protocol.Py4JJavaError: An error occurred while calling foreachBatch: java.lang.InterruptedException"
"""What Spark looks for in a callback's error to tell a stop from a failure. It does so with a regular expression that takes a
stack frame per character: over Spark's own text, which carries stack traces, that is a StackOverflowError of a thousand lines."""

BatchIterator = Iterator[pa.RecordBatch]


class InterruptedByStop(Exception):
    """The micro-batch under way ends because its query is being stopped. Spark runs it again at the next start."""


class FrameFeeder:
    """A ``Feeder`` over a DataFrame of either kind."""

    def __init__(self, frame: Any, trigger: Duration | None = None) -> None:
        if not isinstance(frame, DataFrame):
            raise InvalidUseError(f"from_dataframe needs a DataFrame of a classic Spark session given={type(frame).__name__}")
        self._frame = frame
        self._trigger = _trigger(trigger)
        if trigger is not None and not self.streaming:
            raise InvalidUseError(f"trigger is for streaming DataFrames, this one is none trigger={trigger!r}")

    @property
    def streaming(self) -> bool:
        """True for a streaming DataFrame."""
        return bool(self._frame.isStreaming)

    def schema(self) -> pa.Schema:
        """The DataFrame's columns in Arrow's types; times have the zone UTC."""
        try:
            return to_arrow_schema(self._frame.schema, timezone="UTC")
        except (PySparkException, TypeError) as error:
            raise InvalidUseError(f"a column of the DataFrame has no Arrow type, cast or drop it: {error}") from error

    def fill(self, url: str, spool: Spool, schema: pa.Schema, event_time: str | None) -> list[Chunk]:
        """Compute the DataFrame and write its rows, one task per partition. Blocks until all are written."""
        _check_shared(self._frame, url)
        return written(self._frame, url, spool, 0, schema, event_time)

    def feed(
        self, url: str, spool: Spool, schema: pa.Schema, event_time: str | None, on_failure: OnFailure
    ) -> Callable[[], None]:
        """Run the streaming query beside the job; returns what stops it."""
        _check_shared(self._frame, url)
        feed = StreamFeed(self._frame, self._trigger, url, spool, on_failure, (schema, event_time))
        feed.start()
        return feed.stop


class StreamFeed:
    """One streaming query that appends to a spool, started again when it fails, within limits."""

    def __init__(
        self,
        frame: DataFrame,
        trigger: dict[str, Any],
        url: str,
        spool: Spool,
        on_failure: OnFailure,
        columns: tuple[pa.Schema, str | None],
    ) -> None:
        self._frame = frame
        self._trigger = trigger
        self._url = url
        self._spool = spool
        self._on_failure = on_failure
        self._columns = columns
        self._appender = BatchAppender(open_store(url), spool)
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._query: StreamingQuery | None = None
        self._waited_for: TidegateError | None = None
        self._patience = Patience(STORAGE_WAIT_MS)
        self._thread = supervised(f"tidegate-feed-{spool.prefix}", self._run, self._died)

    def start(self) -> None:
        """Start the query, in a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the query and wait for it. What it has not appended it will read again."""
        with self._lock:
            self._stopping.set()
            query = self._query
        if query is not None:
            _quietly(query.stop)
        self._thread.join(STOP_WAIT_S)

    def append(self, frame: DataFrame, batch_id: int) -> None:
        """What Spark calls for each micro-batch. Returns when its rows are durable; does nothing for one that it repeats.

        Spark takes a return for success, so it must not return early, not even while the job is being stopped.
        """
        if not self._appender.wants(batch_id):
            return
        schema, event_time = self._columns
        try:
            self._appender.append(batch_id, written(frame, self._url, self._spool, batch_id, schema, event_time))
        except Exception as error:
            if self._stopping.is_set():
                raise InterruptedByStop(INTERRUPTED) from None
            if isinstance(error, WAITED_FOR):  # Spark passes it on as text
                self._waited_for = error
            raise

    def _run(self) -> None:
        """A store that can't be used is waited for, up to ten minutes; a query that fails gets a few chances."""
        failures = 0
        while not self._stopping.is_set() and not self._appender.ended:
            before = self._appender.appended
            reason = self._once()
            if reason is None:
                return
            if self._appender.appended > before:
                failures = 0
                self._patience.passed()
            waited_for, self._waited_for = self._waited_for, None
            failures += waited_for is None
            verdict = self._patience.failed() if waited_for is not None else _chances(failures)
            if isinstance(verdict, StopRestarting):
                self._on_failure(f"the streaming query failed {verdict.failures} times without progress: {reason}")
                return
            log.warning("the streaming query failed, starting it again: %s spool=%s", waited_for or reason, self._spool.root)
            self._stopping.wait(verdict.wait_ms / 1000)

    def _died(self, death: ThreadDied) -> None:
        if not self._stopping.is_set():
            self._on_failure(f"the streaming query is no longer fed: {death}")

    def _once(self) -> str | None:
        """Run the query until it ends. ``None``: as it should; else why it failed."""
        try:
            query = self._started()
            if query is not None:
                query.awaitTermination()
        except Exception as error:  # whatever Spark raises: it is told to the user, or tried again
            return None if self._stopping.is_set() else _first_line(error)
        if self._stopping.is_set():
            return None
        if "availableNow" not in self._trigger:
            return "somebody else stopped the query"
        return self._finished()

    def _finished(self) -> str | None:
        try:
            self._appender.finish()
        except WAITED_FOR as error:
            self._waited_for = error
            return str(error)
        return None

    def _started(self) -> StreamingQuery | None:
        location = _location(self._url, self._spool)
        writer = self._frame.writeStream.foreachBatch(self.append).option("checkpointLocation", location)
        if self._trigger:
            writer = writer.trigger(**self._trigger)
        with self._lock:  # stop() either sees the query or keeps it from being started
            if self._stopping.is_set():
                return None
            self._query = writer.start()
            return self._query


def _chances(failures: int) -> RestartVerdict:
    if failures >= QUERY_FAILURES_MAX:
        return StopRestarting(failures)
    return RestartAfter(FIRST_PAUSE_MS << (failures - 1))


def written(frame: DataFrame, url: str, spool: Spool, batch_id: int, schema: pa.Schema, event_time: str | None) -> list[Chunk]:
    """Write a DataFrame's rows; what tasks wrote that did not succeed is in no list."""
    rows = frame.mapInArrow(_writer(url, spool, batch_id, schema, event_time), RESULT).collect()
    return [decode(Chunk, row.chunk.encode(), "spool") for row in rows]


def _writer(
    url: str, spool: Spool, batch_id: int, schema: pa.Schema, event_time: str | None
) -> Callable[[BatchIterator], BatchIterator]:
    def write(batches: BatchIterator) -> BatchIterator:
        context = TaskContext.get()
        assert context is not None
        chunks = write_chunks(open_store(url), spool, batch_id, context.partitionId(), batches, schema, event_time)
        for chunk in chunks:
            yield pa.RecordBatch.from_pydict({"chunk": [encode(chunk).decode()]})

    return write


def _trigger(trigger: Duration | None) -> dict[str, Any]:
    if trigger is None:
        return {}
    if trigger == AVAILABLE_NOW:
        return {"availableNow": True}
    return {"processingTime": f"{parse_duration_ms(trigger, name='trigger', minimum_ms=1)} milliseconds"}


def _location(url: str, spool: Spool) -> str:
    """The query's own checkpoints, in the store too; Hadoop calls S3 by another name."""
    bare = url if "://" not in url else bare_url(url)
    root = bare.replace("s3://", "s3a://", 1).rstrip("/")
    return f"{root}/{spool.root}/checkpoint"


def _check_shared(frame: DataFrame, url: str) -> None:
    if url.startswith("memory:"):
        raise InvalidUseError("Spark's tasks can't write into this process's memory: give store= a directory or an s3:// URL")
    master = str(frame.sparkSession.sparkContext.master)
    if urlsplit(url).scheme in ("", "file") and not master.startswith("local"):
        log.info("the spool must be a directory that all executors share url=%s", url)


def _quietly(stop: Callable[[], None]) -> None:
    try:
        stop()
    except Exception as error:  # the session may be gone already, and then so is the query
        log.info("the streaming query could not be stopped: %s", _first_line(error))


def _first_line(error: Exception) -> str:
    if isinstance(error, TidegateError):
        return str(error)
    return (str(error).strip() or type(error).__name__).splitlines()[0]
