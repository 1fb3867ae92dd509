"""``tidegate verify``: reads every byte of every retained checkpoint and names what is damaged."""

from __future__ import annotations

import argparse

from tidegate.cli.console import Console, sized

HELP = "check every object of every retained checkpoint"
DESCRIPTION = (
    "Read every object that the retained checkpoints in STORE need, and name those that are damaged. Exit code 1 if any is."
)
DAMAGED = 1


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """The verb's own arguments."""
    verb.add_argument("store", metavar="STORE", help="a directory or file://, s3://, gs://, az://")
    verb.add_argument("--job", metavar="NAME", help="only this job")


def execute(arguments: argparse.Namespace, output: Console) -> int:
    """Reads only. Takes as long as reading all of it takes."""
    from tidegate.cli.stores import jobs_of
    from tidegate.runtime.soundness import verify

    store, jobs = jobs_of(arguments.store, arguments.job)
    verdicts = [verify(store, job) for job in jobs]
    output.document(
        {
            "store": store.url,
            "sound": not any(verdict.damage for verdict in verdicts),
            "jobs": [
                {
                    "job": verdict.job,
                    "epochs": list(verdict.epochs),
                    "objects": verdict.objects,
                    "bytes": verdict.bytes,
                    "damage": [{"path": each.path, "what": each.what, "epochs": list(each.epochs)} for each in verdict.damage],
                }
                for verdict in verdicts
            ],
        }
    )
    for verdict in verdicts:
        state = f"{len(verdict.damage)} damaged" if verdict.damage else "all sound"
        output.say(
            f"job {verdict.job}: {len(verdict.epochs)} checkpoints, {verdict.objects} objects, {sized(verdict.bytes)}: {state}"
        )
        for each in verdict.damage:
            needed = f", needed by epoch {', '.join(map(str, each.epochs))}" if each.epochs else ""
            output.say(f"  {each.path}: {each.what}{needed}")
    return DAMAGED if any(verdict.damage for verdict in verdicts) else 0
