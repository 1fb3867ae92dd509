"""``tidegate cancel``: aborts a checkpoint that is under way."""

from __future__ import annotations

import argparse

from tidegate.cli.ask import add_job, asked, tell
from tidegate.cli.console import Console

HELP = "abort a checkpoint that is under way"
DESCRIPTION = "Ask the leader of JOB to abort the checkpoint with this id. The job goes on; `tidegate status` shows the id."


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """The verb's own arguments."""
    add_job(verb)
    verb.add_argument("checkpoint_id", metavar="ID", type=int, help="the checkpoint's id")


def execute(arguments: argparse.Namespace, output: Console) -> int:
    """Blocks until it is aborted."""
    asked(arguments, "cancel", checkpoint_id=arguments.checkpoint_id)
    tell(output, {"job": arguments.job, "cancelled": arguments.checkpoint_id})
    return 0
