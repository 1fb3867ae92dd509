"""``tidegate bench core``: the steps of the protocol beside the targets that were set for them."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.cli.console import Console
from tidegate.cli.progress import Progress

if TYPE_CHECKING:
    from tidegate.bench.core import CoreSettings

# A cost of one percent can't be told from rounds that are further apart than that.
NOISY_POINTS = 1.0


def execute(output: Console, settings: CoreSettings | None = None, *, large: bool = False) -> int:
    """Blocks until everything is measured, for most of a minute. A missed target is a finding, not a failure: exit code 0."""
    from tidegate.bench import core
    from tidegate.bench.large import LargeSettings
    from tidegate.cli.bench import machine

    settings = settings or core.CoreSettings(large=LargeSettings() if large else None)

    work = Path(tempfile.mkdtemp(prefix="tidegate-bench-"))
    load_before, begun = os.getloadavg()[0], time.monotonic()
    try:
        with Progress("bench", settings.stages) as progress:
            steps = count()
            measured = core.run(settings, work, lambda note: progress.show(next(steps), note))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    facts = {**machine(), "load_before": load_before, "load_after": os.getloadavg()[0]}
    seconds = round(time.monotonic() - begun, 1)
    document = {"suite": "core", "machine": facts, "seconds": seconds, **measured}
    _print({**document, "warnings": warnings(document)}, output)
    return 0


def warnings(document: dict[str, Any]) -> list[str]:
    """Why these figures should not be believed as they are."""
    from tidegate.cli.bench import BUSY_LOAD_PER_CORE

    facts, found = document["machine"], []
    if facts["load_before"] > BUSY_LOAD_PER_CORE * (facts["cores"] or 1):
        found.append(f"the machine was busy before the start (load {facts['load_before']:.1f}): measure again")
    for row in document["readings"]:
        if row["met"] is not None and 0 < row["rounds_met"] < row["rounds"]:
            met = f"{row['rounds_met']} of {row['rounds']}"
            found.append(f"{row['name']}: {met} rounds met the target, so the answer is not clear")
        if row["unit"] == "%" and row["max"] - row["min"] > NOISY_POINTS:
            points = row["max"] - row["min"]
            found.append(f"{row['name']}: its rounds scatter by {points:.1f} points, so met or not means nothing")
    return found


def _print(document: dict[str, Any], output: Console) -> None:
    output.document(document)
    facts = document["machine"]
    output.say(
        f"{facts['cores']} cores, load {facts['load_before']:.1f} before, {facts['load_after']:.1f} after, "
        f"python {facts['python']}, {document['seconds']:.0f} s\n"
    )
    rows = document["readings"]
    output.table([_shown(row) for row in rows])
    output.say("\nwhat was measured; a target is met when the median meets it")
    for row in rows:
        output.say(f"  {row['name']}: {row['what']}")
    output.say("\nnot measured")
    for name, why in document["not_measured"].items():
        output.say(f"  {name}: {why}")
    for warning in document["warnings"]:
        output.say(f"NOTE: {warning}")


def _shown(row: dict[str, Any]) -> dict[str, object]:
    figures = {key: _figure(row[key]) for key in ("min", "median", "max")}
    return {"name": row["name"], **figures, **{key: row[key] for key in ("unit", "target", "met")}}


def _figure(value: float) -> str:
    """Three digits that mean something, and no exponents."""
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{float(f'{value:.3g}'):g}"
