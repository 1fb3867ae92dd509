"""A running pipeline, as its user sees it. Modelled on Spark's ``StreamingQuery``."""

from __future__ import annotations

import os
from concurrent.futures import Future
from typing import Any

import pyarrow as pa

from tidegate.core.control.ask import SignalAnswer, SignalMode
from tidegate.core.duration import Duration, parse_duration_ms
from tidegate.core.failure.problems import Problem
from tidegate.errors import CheckpointDisabled, InvalidUseError, JobFailedError, SignalTimeout
from tidegate.ids import Epoch
from tidegate.runtime.interrupt import plain_interrupts
from tidegate.runtime.leader import Leader
from tidegate.runtime.metrics import JobMetrics
from tidegate.runtime.savepoint import savepoint_url, shown_url, write_savepoint

STOP_WAIT_S = 60.0


class Job:
    """A handle on a job. All methods may be called from any thread."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self._leader.job

    @property
    def status(self) -> str:
        """STARTING, RUNNING, RESTARTING, STOPPING, FINISHED, STOPPED or FAILED."""
        return self._leader.status

    @property
    def error(self) -> JobFailedError | None:
        """Why the job failed, if it did."""
        return self._leader.error

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What is wrong with the store and the sinks now, since when and what to do; the oldest first, none while all is well."""
        return self._leader.problems

    @property
    def restored_from(self) -> int | None:
        """The epoch that this job was started from."""
        return self._leader.restored_from

    @property
    def skipped(self) -> tuple[tuple[int, str], ...]:
        """The damaged checkpoints that were passed over to start from an older one: epoch and why, newest first."""
        return self._leader.opening.skipped

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know of this start: that the job has finished before, or that rows newer than the log were hidden."""
        return tuple(self._leader.opening.notes)

    @property
    def ui_url(self) -> str | None:
        """Where the job's page is; ``None``: there is none."""
        return None

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until the job has ended; False when ``timeout`` seconds passed first. Raises what made the job fail.

        Ctrl-C stops the job in good order and then raises ``KeyboardInterrupt``. A second one does not wait for that.
        """
        if timeout is not None and (not isinstance(timeout, int | float) or not timeout >= 0):
            raise InvalidUseError(f"timeout is a number of seconds timeout={timeout!r}")
        try:
            with plain_interrupts():
                ended = self._leader.ended.wait(timeout)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(self._interrupted()) from None
        if not ended:
            return False
        if self._leader.error is not None:
            raise self._leader.error
        return True

    def checkpoint(self, timeout: Duration = "600s") -> int:
        """Take a checkpoint now and wait for it; returns its epoch. Joins one that is under way."""
        self._need_checkpoints("checkpoint()")
        return self._leader.request_checkpoint().result(parse_duration_ms(timeout) / 1000)

    def savepoint(self, path: str | os.PathLike[str] | None = None, timeout: Duration = "600s") -> int:
        """Take an aligned checkpoint that is kept, and copy it to ``path`` if one is given; returns its epoch.

        ``Pipeline.start(restore=path)`` starts from the copy, in any store, at any parallelism.
        """
        self._need_checkpoints("savepoint()")
        url = None if path is None else savepoint_url(path)
        name = "" if url is None else shown_url(url)
        epoch = self._leader.request_checkpoint(savepoint=name).result(parse_duration_ms(timeout) / 1000)
        if url is not None:
            write_savepoint(self._leader.log, Epoch(epoch), url)
        return epoch

    def cancel_checkpoint(self, checkpoint_id: int) -> None:
        """Abort a checkpoint that is under way."""
        self._leader.cancel_checkpoint(checkpoint_id).result(STOP_WAIT_S)

    def signal(self, kind: str, payload: bytes = b"", mode: SignalMode = "barrier", timeout: Duration = "60s") -> SignalAnswer:
        """Send a control signal through the running job and wait until all sinks have seen it.

        ``barrier``: it travels with the data, in one order with checkpoints, between the same two rows everywhere. ``instant``:
        every node hears of it at once. ``"SyncTest"`` measures the data path, ``"StreamGracefulEnd"`` ends the sources; other
        kinds, with their payload, reach functions and sinks that have ``on_signal(kind, payload)``.
        """
        return self._answer(self._leader.signal(kind, payload, mode), timeout, f"kind={kind}")

    def set_parameter(self, name: str, value: object, timeout: Duration = "600s") -> SignalAnswer:
        """Give a ``Parameter`` another value, between the same two rows on all nodes, and wait until a checkpoint has it.

        Without checkpoints it waits until all sinks have seen the change.
        """
        return self._answer(self._leader.set_parameter(name, value), timeout, f"name={name}")

    def _answer(self, future: Future[SignalAnswer], timeout: Duration, what: str) -> SignalAnswer:
        limit_s = parse_duration_ms(timeout) / 1000
        try:
            return future.result(limit_s)
        except TimeoutError:
            raise SignalTimeout(
                f"no answer after {limit_s:g} s; the signal is still on its way, see problems and metrics job={self.name} {what}"
            ) from None

    def stop(self, savepoint: str | os.PathLike[str] | None = None, drain: bool = False) -> None:
        """End the job and wait for it, after a savepoint if a path is given.

        What was not committed by a checkpoint is done again by the next start. With ``drain`` the sources end where they are,
        as if there were no more rows: open windows are emitted, everything that was read is committed, and the job is FINISHED
        for good. It does not read on when it is started again.
        """
        if savepoint is not None:
            self.savepoint(savepoint)
        self._leader.stop(drain=drain)
        if not self._leader.ended.wait(STOP_WAIT_S):
            raise JobFailedError(f"the job did not stop in {STOP_WAIT_S:.0f} s job={self.name}")

    def checkpoints(self) -> list[dict[str, Any]]:
        """The checkpoints of this run, committed and aborted, oldest first."""
        return self._leader.checkpoints()

    def metrics(self) -> JobMetrics:
        """What the job has done so far."""
        return self._leader.metrics()

    def collect(self, sink: str | None = None) -> pa.Table:
        """The committed rows of a ``collect()`` sink; name it when the pipeline has several."""
        return self._leader.publisher.collected(sink)

    def to_dataframe(self, spark: Any, sink: str | None = None) -> Any:
        """The committed rows of a sink as a Spark DataFrame; name the sink when the pipeline has several."""
        from tidegate.spark.results import committed_rows

        return committed_rows(spark, self._leader.publisher.outputs, sink)

    def _interrupted(self) -> str:
        """Stop; returns the sentence for the user."""
        self.stop()
        if self.status != "STOPPED":
            return f"interrupted: the job had ended status={self.status} job={self.name}"
        epochs = [each["epoch"] for each in self.checkpoints() if each["epoch"] is not None]
        last = epochs[-1] if epochs else self.restored_from
        if last is None:
            return f"interrupted: the job was stopped and has no checkpoint, the next start begins afresh job={self.name}"
        return f"interrupted: the job was stopped, the next start goes on from its last checkpoint epoch={last} job={self.name}"

    def _need_checkpoints(self, what: str) -> None:
        if not self._leader.checkpointing:
            raise CheckpointDisabled(
                f"{what} needs checkpointing: start the job with checkpoint=tg.CheckpointConfig(interval='1s')"
            )
