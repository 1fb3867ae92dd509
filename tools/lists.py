"""Writes the lists of the documentation that are made of code: ``python tools/lists.py``. A test compares them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path

from tidegate.plan.capabilities import CAPABILITIES
from tidegate.plan.connector import Sink, Source
from tidegate.runtime.metrics import TOTALS, JobMetrics, NodeMetrics, OperatorMetrics, listed

ROOT = Path(__file__).resolve().parent.parent


def capabilities() -> str:
    """One row per capability: its name, its members, what it is for and what happens without it."""
    rows = [f"| `{each.__name__}` | {_members(each)} | {_sentence(each)} |" for each in CAPABILITIES]
    return "\n".join(["| capability | members | |", "|---|---|---|", *rows])


def _members(protocol: type) -> str:
    contract = {*vars(Source), *vars(Sink)}
    names = [name for name in vars(protocol) if not name.startswith("_") and name not in contract]
    return ", ".join(f"`{name}`" for name in names)


def _sentence(documented: type) -> str:
    return " ".join(inspect.cleandoc(documented.__doc__ or "").split()).replace("``", "`")


def metrics() -> str:
    """A table per place that metrics are of, and what totals mean across a recovery."""
    parts = [
        "## Of the job\n",
        _metrics(JobMetrics),
        '\n## Of an operator with state: `job.metrics()["operators"][name]`\n',
        _metrics(OperatorMetrics),
        '\n## Of a node: each of `job.metrics()["nodes"]`\n',
        _metrics(NodeMetrics),
        "\n## What a total means when nodes are lost and the job goes back to its last checkpoint\n",
        "| total | counts |\n|---|---|",
        *(f"| {total} | {meaning} |" for total, meaning in TOTALS.items()),
    ]
    return "\n".join(parts)


def _metrics(of: type) -> str:
    rows = [f"| `{name}` | {m.kind} | {m.unit} | {m.total} | {m.meaning} |" for name, m in sorted(listed(of))]
    return "\n".join(["| name | kind | unit | total | meaning |", "|---|---|---|---|---|", *rows])


LISTS: dict[tuple[str, str], Callable[[], str]] = {
    ("docs/connectors.md", "capabilities"): capabilities,
    ("docs/metrics.md", "metrics"): metrics,
}


def written(path: str, name: str) -> str:
    """The document with this list anew."""
    begin = f"<!-- {name}: written by tools/lists.py -->\n"
    found = re.compile(re.escape(begin) + r".*?<!-- end -->", re.DOTALL)
    text, times = found.subn(lambda _: f"{begin}{LISTS[path, name]()}\n<!-- end -->", (ROOT / path).read_text())
    if times != 1:
        raise SystemExit(f"{path} has {times} lists of this name, it needs one name={name}")
    return text


if __name__ == "__main__":
    for path, name in LISTS:
        (ROOT / path).write_text(written(path, name))
