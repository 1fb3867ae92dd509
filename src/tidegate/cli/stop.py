"""``tidegate stop``: ends a running job; the next start goes on from its last checkpoint."""

from __future__ import annotations

import argparse

from tidegate.cli.ask import add_job, asked, tell
from tidegate.cli.console import Console

HELP = "stop a running job"
DESCRIPTION = (
    "Ask the leader of JOB to stop it, after a savepoint if a path is given. What no checkpoint has committed is done again "
    "by the next start."
)


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """The verb's own arguments."""
    add_job(verb)
    verb.add_argument("--savepoint", metavar="PATH", help="take a savepoint first")


def execute(arguments: argparse.Namespace, output: Console) -> int:
    """Returns when the leader has heard it."""
    from tidegate.store.open import absolute_url

    if arguments.savepoint is not None:
        asked(arguments, "savepoint", path=absolute_url(arguments.savepoint))
    tell(output, asked(arguments, "stop"))
    return 0
