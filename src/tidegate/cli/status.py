"""``tidegate status``: what a running job does now."""

from __future__ import annotations

import argparse

from tidegate.cli.ask import add_key
from tidegate.cli.console import Console, shown
from tidegate.errors import WAITED_FOR, CorruptDataError

HELP = "what a running job does now"
DESCRIPTION = (
    "Ask the leader of JOB, or of every job in STORE that runs, how it is doing. Exit code 1 when one of them has a problem or "
    "does not run."
)


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """The verb's own arguments."""
    verb.add_argument("store", metavar="STORE", help="a directory or file://, s3://, gs://, az://")
    verb.add_argument("job", metavar="JOB", nargs="?", help="only this job")
    add_key(verb)


def execute(arguments: argparse.Namespace, output: Console) -> int:
    """Blocks for an answer of each leader."""
    from tidegate.cli.stores import jobs_of
    from tidegate.runtime.operate import is_running
    from tidegate.store.open import absolute_url

    _, jobs = jobs_of(arguments.store, arguments.job)
    url = absolute_url(arguments.store)
    told: list[dict[str, object]] = []
    for job in jobs:
        try:
            beat = is_running(url, job, arguments.election)
        except (*WAITED_FOR, CorruptDataError) as error:
            told.append({"job": job, "status": "UNKNOWN", "problems": [str(error)]})
            continue
        told.append({"job": job, "status": "NOT RUNNING"} if beat is None else _asked(arguments, url, job))
    output.document({"jobs": told})
    for each in told:
        output.say("  ".join(f"{name}={shown(value)}" for name, value in each.items()))
    return int(any(each["status"] == "NOT RUNNING" or each.get("problems") for each in told))


def _asked(arguments: argparse.Namespace, url: str, job: str) -> dict[str, object]:
    from tidegate.runtime.operate import OperatorLine
    from tidegate.runtime.security import Tls

    tls = None if arguments.tls is None else Tls(*arguments.tls)
    with OperatorLine(url, job, token_file=arguments.token_file, tls=tls, election=arguments.election) as line:
        about: dict[str, object] = line.ask("status")
        metrics = line.ask("metrics")
    wanted = ("checkpoint_id", "rows_in", "rows_out", "checkpoints_committed", "restarts")
    return about | {name: metrics[name] for name in wanted if name in metrics}
