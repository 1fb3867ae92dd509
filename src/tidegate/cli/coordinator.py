"""``tidegate coordinator``: stands by for the leader of a job, and leads it while its driver keeps the data flowing."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

from tidegate.cli.ask import add_election
from tidegate.cli.console import Console

HELP = "stand by for the leader of a job"
DESCRIPTION = (
    "Wait beside the leader of a job and take over when it is gone; with --takeover at once. The job's nodes go on meanwhile. "
    "Needs the job's store and token, no Spark and no pipeline. Ctrl-C hands the job back to its driver, or to another standby."
)


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """The verb's own arguments."""
    verb.add_argument("store", metavar="STORE", help="a directory or file://, s3://, gs://, az://")
    verb.add_argument("--job", metavar="NAME", required=True, help="the pipeline's name")
    verb.add_argument("--takeover", action="store_true", help="replace the leader of now, whoever it is")
    verb.add_argument("--token-file", metavar="FILE", help="the job's token (default: where its driver on this machine put it)")
    add_election(verb)
    verb.add_argument("--bind", metavar="ADDRESS", default="127.0.0.1", help="where to listen for nodes (default: 127.0.0.1)")
    verb.add_argument("--advertise", metavar="HOST", help="how nodes reach this machine, when it is not --bind")
    verb.add_argument("--tls", nargs=3, metavar=("CERTIFICATE", "KEY", "AUTHORITY"), help="PEM files, where the job uses TLS")
    verb.add_argument("--allow-plaintext", action="store_true", help="with --bind, without --tls")


def execute(arguments: argparse.Namespace, output: Console) -> int:
    """Blocks until the job has ended, or this is interrupted."""
    from tidegate.runtime.coordinator import Coordinator, CoordinatorOptions
    from tidegate.runtime.security import Tls
    from tidegate.runtime.token import read_secret, token_path
    from tidegate.store.open import absolute_url

    url, job = absolute_url(arguments.store), arguments.job
    secret = read_secret(token_path(url, job) if arguments.token_file is None else Path(arguments.token_file))
    tls = None if arguments.tls is None else Tls(*arguments.tls)
    options = CoordinatorOptions(arguments.bind, arguments.advertise, tls, arguments.allow_plaintext, arguments.election)
    coordinator = Coordinator(url, job, secret, options)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: coordinator.stop())
    status = coordinator.run(takeover=arguments.takeover, say=output.say)
    output.say(f"the coordinator has ended job={job} status={status}")
    output.document({"job": job, "status": status})
    return int(status == "FAILED")
