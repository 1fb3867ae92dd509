"""How every verb speaks: text for people, a line of JSON for programs. Results go to standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TextIO, TypeAlias

Row: TypeAlias = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Console:
    """Where results go and in which form."""

    as_json: bool = False
    stream: TextIO = field(default_factory=lambda: sys.stdout)

    def say(self, text: str = "") -> None:
        """A line for people; nothing in JSON form."""
        if not self.as_json:
            print(text, file=self.stream, flush=True)

    def document(self, value: object) -> None:
        """One line of JSON; nothing for people."""
        if self.as_json:
            print(json.dumps(value, default=str, allow_nan=False), file=self.stream, flush=True)

    def table(self, rows: Sequence[Row], columns: Sequence[str] | None = None) -> None:
        """Rows for people. Columns that are not named are taken from the first row."""
        if rows:
            self.say("\n".join(table_lines(rows, columns or list(rows[0]))))


def table_lines(rows: Sequence[Row], columns: Sequence[str]) -> list[str]:
    """A header and one line per row; numbers to the right, everything else to the left."""
    cells = [[shown(row.get(column)) for column in columns] for row in rows]
    right = [all(isinstance(row.get(c), int | float | None) for row in rows) for c in columns]
    heads = [column.replace("_", " ") for column in columns]
    widths = [max(len(line[i]) for line in [heads, *cells]) for i in range(len(columns))]
    return [
        "  ".join(cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(line, widths, right, strict=True)).rstrip()
        for line in [heads, *cells]
    ]


def shown(value: object) -> str:
    """A value as a person reads it."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.2f}"
        case _:
            return str(value)


def sized(size_bytes: int | float) -> str:
    """A number of bytes with a unit."""
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def rate(rows_per_second: float) -> str:
    """Rows per second with a unit."""
    if rows_per_second >= 1e6:
        return f"{rows_per_second / 1e6:.2f} M rows/s"
    if rows_per_second >= 1e3:
        return f"{rows_per_second / 1e3:.0f} k rows/s"
    return f"{rows_per_second:.0f} rows/s"
