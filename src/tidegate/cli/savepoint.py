"""``tidegate savepoint``: has a running job take a savepoint."""

from __future__ import annotations

import argparse

from tidegate.cli.ask import add_job, asked, tell
from tidegate.cli.console import Console

HELP = "have a running job take a savepoint"
DESCRIPTION = "Ask the leader of JOB for an aligned checkpoint that is kept, and have it copied to PATH."


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """The verb's own arguments."""
    add_job(verb)
    verb.add_argument("path", metavar="PATH", help="where to: a directory that the leader can write, or a URL")


def execute(arguments: argparse.Namespace, output: Console) -> int:
    """Blocks until it is copied."""
    from tidegate.store.open import absolute_url

    path = absolute_url(arguments.path)
    tell(output, {"job": arguments.job, "epoch": asked(arguments, "savepoint", path=path), "path": path})
    return 0
