"""What the verbs that steer a running job have in common: where it is, and its key."""

from __future__ import annotations

import argparse
from typing import Any

from tidegate.cli.console import Console, shown


def add_job(verb: argparse.ArgumentParser) -> None:
    """STORE, JOB and how to prove that one may."""
    verb.add_argument("store", metavar="STORE", help="a directory or file://, s3://, gs://, az://")
    verb.add_argument("job", metavar="JOB", help="the pipeline's name")
    add_key(verb)


def add_key(verb: argparse.ArgumentParser) -> None:
    """How to prove that one may."""
    verb.add_argument("--token-file", metavar="FILE", help="the job's token (default: where its driver on this machine put it)")
    add_election(verb)
    verb.add_argument("--tls", nargs=3, metavar=("CERTIFICATE", "KEY", "AUTHORITY"), help="PEM files, where the job uses TLS")


def add_election(verb: argparse.ArgumentParser) -> None:
    """Where the job's leader is to be found."""
    verb.add_argument("--election", metavar="URL", help="store or etcd://… (default: where the job's driver says)")


def asked(arguments: argparse.Namespace, verb: str, **question: Any) -> Any:
    """The leader's answer. Blocks."""
    from tidegate.runtime.operate import ask
    from tidegate.runtime.security import Tls
    from tidegate.store.open import absolute_url

    tls = None if arguments.tls is None else Tls(*arguments.tls)
    url = absolute_url(arguments.store)
    return ask(url, arguments.job, verb, token_file=arguments.token_file, tls=tls, election=arguments.election, **question)


def tell(output: Console, answer: dict[str, Any]) -> None:
    """Print an answer."""
    output.document(answer)
    output.say("  ".join(f"{name}={shown(value)}" for name, value in answer.items()))
