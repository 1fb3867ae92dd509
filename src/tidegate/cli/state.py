"""``tidegate state``: an operator's checkpointed state as rows."""

from __future__ import annotations

import argparse

from tidegate.cli.console import Console
from tidegate.errors import InvalidUseError

HELP = "show an operator's state in a checkpoint"
DESCRIPTION = "Show the state of OPERATOR in a checkpoint of STORE as rows: window, keys, and what is kept for them."
ROWS_SHOWN = 20


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """The verb's own arguments."""
    verb.add_argument("store", metavar="STORE", help="a directory or file://, s3://, gs://, az://")
    verb.add_argument("operator", metavar="OPERATOR", help="as `tidegate show` lists it")
    verb.add_argument("--epoch", metavar="N", type=int, help="default: what the next start would begin from")
    verb.add_argument("--job", metavar="NAME", help="needed when several jobs of the store have such an operator")
    verb.add_argument("--limit", metavar="ROWS", type=int, default=ROWS_SHOWN, help=f"default: {ROWS_SHOWN}; 0 for all")


def execute(arguments: argparse.Namespace, output: Console) -> int:
    """Reads only."""
    from tidegate.runtime import inspect

    if arguments.limit < 0:
        raise InvalidUseError(f"--limit is a number of rows, 0 for all limit={arguments.limit}")
    found = inspect.find(arguments.store, job=arguments.job, epoch=arguments.epoch, operator=arguments.operator)
    table = inspect.read_state(found, arguments.operator)
    rows = (table.slice(0, arguments.limit) if arguments.limit else table).to_pylist()
    output.document(
        {
            "job": found.manifest.job,
            "epoch": found.manifest.epoch,
            "operator": arguments.operator,
            "rows": table.num_rows,
            "columns": {field.name: str(field.type) for field in table.schema},
            "state": [{name: _plain(value) for name, value in row.items()} for row in rows],
        }
    )
    output.say(f"job {found.manifest.job}, epoch {found.manifest.epoch}, {arguments.operator}: {table.num_rows} rows")
    output.table([{name: str(value) for name, value in row.items()} for row in rows], table.column_names)
    if len(rows) < table.num_rows:
        output.say(f"... {table.num_rows - len(rows)} more; --limit 0 shows all")
    return 0


def _plain(value: object) -> object:
    """A value that JSON can say; NaN and infinities as text."""
    if isinstance(value, float) and value - value != 0:
        return str(value)
    return value if isinstance(value, bool | int | float | str | None) else str(value)
