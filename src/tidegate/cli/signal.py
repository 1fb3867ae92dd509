"""``tidegate signal``: sends a control signal through a running job."""

from __future__ import annotations

import argparse
from pathlib import Path

from tidegate.cli.ask import add_job, asked, tell
from tidegate.cli.console import Console
from tidegate.errors import InvalidUseError

HELP = "send a control signal through a running job"
DESCRIPTION = (
    "Send a signal with the data of JOB, between the same two rows everywhere, and wait until all sinks have seen it. "
    "SyncTest only measures the way; StreamGracefulEnd drains; other kinds reach functions and sinks that declare on_signal."
)


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """The verb's own arguments."""
    add_job(verb)
    verb.add_argument("kind", metavar="KIND", help="SyncTest, StreamGracefulEnd, or a kind of your own")
    verb.add_argument("--payload", metavar="FILE", help="bytes for a kind of your own")
    verb.add_argument("--mode", choices=["barrier", "instant"], default="barrier", help="with the data (default), or at once")


def execute(arguments: argparse.Namespace, console: Console) -> int:
    """Blocks until all sinks have seen it."""
    import base64

    payload = b""
    if arguments.payload is not None:
        try:
            payload = Path(arguments.payload).read_bytes()
        except OSError as error:
            raise InvalidUseError(f"the payload can't be read: {error} payload={arguments.payload}") from error
    encoded = base64.b64encode(payload).decode()
    answer = asked(arguments, "signal", kind=arguments.kind, payload=encoded, mode=arguments.mode)
    tell(console, {"job": arguments.job, **answer})
    return 0
