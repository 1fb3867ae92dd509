"""Spark's Python daemon with everything a node needs already imported, so that a worker is ready as soon as it is forked.

Spark starts one daemon per executor and lets it fork a process per task. By default every such process imports Arrow and us
for itself, seconds on a busy machine; after a crash that is most of the time until the job runs again. Here the imports happen
once, before the first fork. Switch it on with ``CONF`` when the session is built; tidegate must be installed where executors run.

What is imported here must not start threads of Python or gRPC: a fork copies their locks but not them, and the child hangs.
Nothing may be printed to standard output before the daemon has told Spark its port there.
"""

from __future__ import annotations

import gc
import sys
import threading
from importlib import import_module

MODULE = "tidegate.spark.daemon"

CONF = {"spark.python.use.daemon": "true", "spark.python.daemon.module": MODULE}
"""What a session needs, at its start, to use this daemon."""

PRELOADED = (
    "pyspark.worker",
    "numpy",
    "pyarrow",
    "pyarrow.acero",
    "pyarrow.compute",
    "pyarrow.parquet",
    "obstore",
    "tidegate.connectors.collect",
    "tidegate.connectors.foreach",
    "tidegate.connectors.generate",
    "tidegate.connectors.parquet",
    "tidegate.runtime.host",
    "tidegate.spark.gang",
)

UNSAFE_TO_FORK = ("grpc",)
"""Modules whose own threads do not survive a fork. A node imports them after it."""


def preload() -> None:
    """Import what nodes need. Raises if that made the process unsafe to fork."""
    for name in PRELOADED:
        import_module(name)
    unsafe = [name for name in UNSAFE_TO_FORK if name in sys.modules]
    threads = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if unsafe or threads:
        raise RuntimeError(f"the daemon must fork before these exist modules={unsafe} threads={threads}")


def main() -> None:
    """Preload, then do what Spark's own daemon does. Blocks until Spark closes standard input."""
    from pyspark.daemon import manager

    preload()
    # What is here lives for ever: collections in the workers need not look at it, nor copy its pages.
    gc.collect()
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
