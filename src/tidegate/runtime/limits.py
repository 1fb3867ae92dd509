"""How many files and sockets this process may have open at once."""

from __future__ import annotations

import logging
import resource

from tidegate.errors import InvalidUseError

log = logging.getLogger("tidegate.limits")


def allow_files(count: int, why: str) -> None:
    """Raise this process's limit of open files to ``count``, as far as it may do so itself; else an error that names it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return
    if hard != resource.RLIM_INFINITY and hard < count:
        raise InvalidUseError(
            f"the driver needs {count} open files and may have {hard}: raise the limit (ulimit -n) or lower parallelism {why}"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    log.info("raised the limit of open files from=%d to=%d %s", soft, count, why)
