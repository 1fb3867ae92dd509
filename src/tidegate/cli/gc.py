"""``tidegate gc``: deletes what no retained checkpoint needs."""

from __future__ import annotations

import argparse

from tidegate.cli.console import Console, sized

HELP = "delete what no retained checkpoint needs"
DESCRIPTION = (
    "Delete the objects in STORE that neither the newest N restorable checkpoints of a job nor a savepoint needs. "
    "Entries of the log that nothing needs any more go too, as a running job deletes them itself. "
    "A job that runs meanwhile is not harmed; its newest checkpoint is never touched."
)


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """The verb's own arguments."""
    verb.add_argument("store", metavar="STORE", help="a directory or file://, s3://, gs://, az://")
    verb.add_argument("--retain", metavar="N", type=int, required=True, help="how many checkpoints to keep, 1 or more")
    verb.add_argument("--job", metavar="NAME", help="only this job")
    verb.add_argument("--dry-run", action="store_true", help="only say what would be deleted")


def execute(arguments: argparse.Namespace, output: Console) -> int:
    """Deletes; what it collects can't be restored any more."""
    from tidegate.cli.stores import jobs_of
    from tidegate.runtime.soundness import collect

    store, jobs = jobs_of(arguments.store, arguments.job)
    done = [collect(store, job, arguments.retain, dry_run=arguments.dry_run) for job in jobs]
    output.document(
        {
            "store": store.url,
            "dry_run": arguments.dry_run,
            "jobs": [
                {
                    "job": each.job,
                    "kept": list(each.kept_epochs),
                    "objects": each.objects,
                    "bytes": each.bytes,
                    "log_entries": each.entries,
                }
                for each in done
            ],
        }
    )
    verb = "would delete" if arguments.dry_run else "deleted"
    for each in done:
        kept = ", ".join(map(str, each.kept_epochs)) or "none"
        log = f" and {each.entries} log entries" if each.entries else ""
        output.say(f"job {each.job}: {verb} {each.objects} objects, {sized(each.bytes)}{log}; kept epochs: {kept}")
    return 0
