"""What runs in this process, and what must not share a directory: the same job twice, outputs inside each other.

A second start of a job that runs here would depose the first: seldom what somebody means who runs a notebook's cell again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from tidegate.errors import InvalidUseError
from tidegate.operators.sink import Write
from tidegate.operators.source import Read
from tidegate.plan.capabilities import ReadsDirectories, path_of
from tidegate.plan.physical import PhysicalPlan
from tidegate.store.open import absolute_url, local_path


class RunningJob(Protocol):
    """The part of a leader that is asked."""

    job: str
    status: str
    ended: threading.Event


_lock = threading.Lock()
_jobs: dict[tuple[str, str], RunningJob | None] = {}


@contextmanager
def starting(job: str, store: str | None) -> Iterator[Callable[[RunningJob], None]]:
    """Refuse a start while this job runs, or is being started, from this store in this process; returns what notes the leader.

    Without a store it is the sinks that tell: whoever has them is running.
    """
    if store is None:
        yield lambda leader: None
        return
    key = (_real_url(store), job)
    with _lock:
        if key in _jobs and ((leader := _jobs[key]) is None or not leader.ended.is_set()):
            status = "STARTING" if leader is None else leader.status
            raise InvalidUseError(
                "this job is running in this process already: wait for its end or stop it with its stop(), or give the pipeline "
                f"another name job={job} status={status} pid={os.getpid()}"
            )
        _jobs[key] = None

    def note(leader: RunningJob) -> None:
        with _lock:
            _jobs[key] = leader

    try:
        yield note
    finally:
        with _lock:
            if _jobs[key] is None:
                del _jobs[key]


def check_directories(plan: PhysicalPlan) -> None:
    """Refuse outputs inside each other, and outputs inside a directory that the job reads: rows would be read twice."""
    specs = [spec for stage in plan.stages for spec in stage.operators]
    outputs = [(spec.name, path) for spec in specs if isinstance(spec, Write) for path in _local(path_of(spec.sink))]
    for index, (_, inner) in enumerate(outputs):
        for _, outer in [*outputs[:index], *outputs[index + 1 :]]:
            if _is_inside(inner, outer):
                raise InvalidUseError(
                    f"an output is inside the directory of another, whoever reads that one would read both: give each its own "
                    f"path={inner} inside={outer}"
                )
    read = [path for spec in specs if isinstance(spec, Read) for path in _directories(spec.source)]
    for (name, inner), outer in ((output, path) for output in outputs for path in read):
        if _is_inside(inner, outer) and not _is_hidden(os.path.relpath(inner, outer)):
            raise InvalidUseError(
                f"the output {name!r} is inside a directory that the job reads, which would read it back: choose another path "
                f"path={inner} inside={outer}"
            )


def _directories(source: object) -> Iterable[str]:
    return _local(*source.directories) if isinstance(source, ReadsDirectories) else ()


def _local(*paths: str | os.PathLike[str] | None) -> Iterable[str]:
    """Those that are local, links resolved."""
    known = (os.fspath(path) for path in paths if path is not None)
    return [os.path.realpath(path) for each in known if (path := local_path(each)) is not None]


def _is_inside(inner: str, outer: str) -> bool:
    return inner == outer or inner.startswith(outer.rstrip(os.sep) + os.sep)


def _is_hidden(relative: str) -> bool:
    """Readers leave out what is below such a name."""
    return any(part[0] in "._" and part != "." and "=" not in part for part in relative.split(os.sep))


def _real_url(store: str) -> str:
    path = local_path(absolute_url(store))
    return store if path is None else os.path.realpath(path)
