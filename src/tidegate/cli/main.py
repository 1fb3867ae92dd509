"""The command ``tidegate``: one module per verb, one function for errors and exit codes.

Exit codes: 0 done, 1 the work failed (a failed job, an inexact demo, damage found), 2 the call was wrong, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from tidegate.cli import (
    bench,
    cancel,
    checkpoint,
    checkpoints,
    coordinator,
    demo,
    doctor,
    drain,
    explain,
    gc,
    jobs,
    run,
    savepoint,
    show,
    signal,
    state,
    status,
    stop,
    verify,
)
from tidegate.cli.console import Console
from tidegate.errors import JobFailedError, TidegateError

VERBS = (
    demo, run, coordinator, explain, jobs, status, checkpoint, savepoint, cancel, stop, drain, signal, checkpoints, show, state,
    verify, gc, doctor, bench,
)  # fmt: skip
FAILED = 1
WRONG_CALL = 2
INTERRUPTED = 130


def parser() -> argparse.ArgumentParser:
    """Every verb adds its own arguments; all of them take ``--json``."""
    top = argparse.ArgumentParser(
        prog="tidegate",
        description="Consistent checkpoints for continuous Python pipelines on Spark.",
        epilog="`tidegate VERB --help` tells more about a verb.",
    )
    verbs = top.add_subparsers(title="verbs", dest="verb", metavar="VERB", required=True)
    for module in VERBS:
        name = module.__name__.rpartition(".")[2]
        verb = verbs.add_parser(name, help=module.HELP, description=module.DESCRIPTION)
        module.add_arguments(verb)
        verb.add_argument("--json", action="store_true", help="print JSON instead of text")
        verb.set_defaults(execute=module.execute)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    arguments = parser().parse_args(argv)
    try:
        return int(arguments.execute(arguments, Console(arguments.json)))
    except JobFailedError as error:
        return _complain(str(error), FAILED)
    except TidegateError as error:
        return _complain(str(error), WRONG_CALL)
    except KeyboardInterrupt as error:
        # Only a run leaves a job behind that can go on; other verbs use jobs of their own and clear them away.
        return _complain((arguments.verb == "run" and str(error)) or "interrupted", INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has gone, as `head` does: no error, and Python must not report one at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _complain(sentence: str, code: int) -> int:
    print(f"tidegate: {sentence}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
