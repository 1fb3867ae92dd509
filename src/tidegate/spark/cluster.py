"""What differs when executors are not threads of this process: they come up later, and must be able to reach the driver."""

from __future__ import annotations

import time
from typing import Any

from pyspark.sql import SparkSession

from tidegate.errors import InvalidUseError
from tidegate.runtime.address import WILDCARDS, is_loopback, is_this_machine
from tidegate.runtime.lifecycle import temporary_directory

EXECUTORS_WAIT_S = 60.0
NO_MORE_S = 10.0
LOOK_S = 0.1
_memories: dict[str, str] = {}


def is_cluster(spark: SparkSession) -> bool:
    """True unless everything runs on the driver's machine by the master's own definition."""
    return not str(spark.sparkContext.master).startswith("local")


def slots(spark: SparkSession) -> int:
    """How many tasks this session can run at the same time now."""
    context: Any = spark.sparkContext
    scala = context._jsc.sc()
    profile = scala.resourceProfileManager().defaultResourceProfile()
    return int(scala.maxNumConcurrentTasks(profile))


def await_slots(spark: SparkSession, wanted: int | None) -> int:
    """The slots of the session. A new session's executors register one by one: waits for as many slots as are wanted.

    Without a number it waits until no more come. Blocks for at most ``EXECUTORS_WAIT_S``, and for ``NO_MORE_S`` at most
    once there are some; then there may be fewer.
    """
    found = slots(spark)
    if not is_cluster(spark):
        return found
    began = changed = time.monotonic()
    patience_s = NO_MORE_S if wanted is not None else NO_MORE_S / 5
    while wanted is None or found < wanted:
        now = time.monotonic()
        if now - began > EXECUTORS_WAIT_S or (found and now - changed > patience_s):
            break
        time.sleep(LOOK_S)
        if (again := slots(spark)) != found:
            found, changed = again, time.monotonic()
    return found


def shared_url(spark: SparkSession, url: str) -> str:
    """The URL as the nodes can reach it, which are other processes.

    Memory that ends with this one is a directory here that ends with it; other machines could not even reach that.
    """
    if not url.lower().startswith("memory://"):
        return url
    if is_cluster(spark):
        raise InvalidUseError(
            "the nodes of a cluster can't reach this process's memory: give store= a URL that they share, for example an "
            "s3:// URL"
        )
    name = url[len("memory://") :].strip("/")
    if not name:
        return temporary_directory("memory")
    if name not in _memories:
        _memories[name] = temporary_directory("memory")
    return _memories[name]


def executor_hosts(spark: SparkSession) -> list[str]:
    """What Spark calls the machines of this session; the driver's is among them."""
    context: Any = spark.sparkContext
    return sorted({str(info.host()) for info in context._jsc.sc().statusTracker().getExecutorInfos()})


def driver_host(spark: SparkSession, bind: str) -> str:
    """The host by which nodes are to dial the driver; refuses one that executors can't reach, before they try."""
    host = str(spark.sparkContext.getConf().get("spark.driver.host", bind)) if bind in WILDCARDS else bind
    if is_cluster(spark):
        check_reachable(host, bind, executor_hosts(spark))
    return host


def check_reachable(host: str, bind: str, executors: list[str]) -> None:
    """A loopback address is good for executors on this machine only."""
    if not is_loopback(host):
        return
    away = [each for each in executors if not is_this_machine(each)]
    if not away:
        return
    cure = (
        "set spark.driver.host to this machine's address when you build the session"
        if bind in WILDCARDS
        else "give start() bind='0.0.0.0' or this machine's address"
    )
    raise InvalidUseError(
        f"executors on other machines can't reach the driver at {host}: {cure} bind={bind} executors={','.join(away)}"
    )
