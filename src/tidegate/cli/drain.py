"""``tidegate drain``: ends a running job's sources where they are, and finishes it."""

from __future__ import annotations

import argparse

from tidegate.cli.ask import add_job, asked, tell
from tidegate.cli.console import Console

HELP = "finish a running job where it is"
DESCRIPTION = (
    "Ask the leader of JOB to end its sources as if there were no more rows: open windows are emitted, everything is committed, "
    "the job is FINISHED."
)


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """The verb's own arguments."""
    add_job(verb)


def execute(arguments: argparse.Namespace, output: Console) -> int:
    """Returns when the leader has heard it."""
    tell(output, asked(arguments, "stop", drain=True))
    return 0
