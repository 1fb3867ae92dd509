"""``tidegate checkpoint``: has a running job take a checkpoint now."""

from __future__ import annotations

import argparse

from tidegate.cli.ask import add_job, asked, tell
from tidegate.cli.console import Console

HELP = "have a running job take a checkpoint now"
DESCRIPTION = "Ask the leader of JOB for a checkpoint and wait until it is committed. One that is under way is joined."


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """The verb's own arguments."""
    add_job(verb)


def execute(arguments: argparse.Namespace, output: Console) -> int:
    """Blocks until it is committed."""
    tell(output, {"job": arguments.job, "epoch": asked(arguments, "checkpoint")})
    return 0
