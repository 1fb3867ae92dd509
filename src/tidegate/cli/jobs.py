"""``tidegate jobs``: the jobs of a store, and who runs them."""

from __future__ import annotations

import argparse

from tidegate.cli.ask import add_election
from tidegate.cli.console import Console
from tidegate.errors import WAITED_FOR, CorruptDataError

HELP = "the jobs of a store, and who runs them"
DESCRIPTION = "List the jobs in STORE with their newest epoch and, of those that run, who leads them and where. Needs no token."


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """The verb's own arguments."""
    verb.add_argument("store", metavar="STORE", help="a directory or file://, s3://, gs://, az://")
    add_election(verb)


def execute(arguments: argparse.Namespace, output: Console) -> int:
    """Only reads the store, and the election where that is elsewhere."""
    from tidegate.cli.stores import jobs_of
    from tidegate.runtime.logstore import LogStore
    from tidegate.runtime.operate import is_running
    from tidegate.store.open import absolute_url

    store, names = jobs_of(arguments.store, None)
    told = []
    for name in names:
        head = LogStore(store, name).view().head
        try:
            beat, otherwise = is_running(absolute_url(arguments.store), name, arguments.election), "NOT RUNNING"
        except (*WAITED_FOR, CorruptDataError) as error:
            output.say(f"nobody can say whether it runs: {error} job={name}")
            beat, otherwise = None, "UNKNOWN"
        told.append(
            {
                "job": name,
                "epoch": None if head is None else head.epoch,
                "status": otherwise if beat is None else beat.status,
                "leader": None if beat is None else beat.whereabouts,
            }
        )
    output.document({"store": store.url, "jobs": told})
    for each in told:
        led = "" if each["leader"] is None else f"  led by {each['leader']}"
        output.say(f"{each['job']}  {each['status']}  epoch={each['epoch']}{led}")
    return 0
