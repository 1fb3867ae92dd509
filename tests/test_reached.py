"""Code that only its own tests reach is no feature: every class of the core is reached by what jobs run."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "tidegate"

# What no job reaches yet, as of 2026-11-16. It goes when push streams (session) are wired: only ever shorter.
NOT_YET = {
    "session": {
        "Change", "ChangeRecord", "ChangelogBuffer", "ChangelogCut", "CheckpointManager", "Completion", "OpType", "Opened",
        "WalEncoder", "WalEnd", "WalReader", "WalRecord", "WalStop",
    },
}  # fmt: skip


def names_in(node: ast.AST) -> set[str]:
    """Every identifier that this code mentions."""
    named = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    named |= {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    return named | {alias.name for each in ast.walk(node) if isinstance(each, ast.ImportFrom) for alias in each.names}


def core_definitions() -> dict[str, tuple[Path, set[str]]]:
    """Every class and function of the core, with what it mentions."""
    found: dict[str, tuple[Path, set[str]]] = {}
    for path in (SOURCE / "core").rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                found[node.name] = (path, names_in(node))
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found |= {target.id: (path, names_in(node)) for target in targets if isinstance(target, ast.Name)}
    return found


def unreached() -> dict[str, list[str]]:
    """The core's classes that nothing outside of it reaches, by room."""
    defined = core_definitions()
    outside = [path for path in SOURCE.rglob("*.py") if "core" not in path.parts]
    queue = [name for path in outside for name in names_in(ast.parse(path.read_text())) if name in defined]
    reached: set[str] = set()
    while queue:
        if (name := queue.pop()) not in reached:
            reached.add(name)
            queue += [each for each in defined[name][1] if each in defined]
    rooms: dict[str, list[str]] = defaultdict(list)
    for name, (path, _) in defined.items():
        if name not in reached and name[0].isupper() and not name.isupper():
            rooms[path.parent.name].append(name)
    return rooms


def test_every_class_of_the_core_is_reached_by_what_jobs_run() -> None:
    """And what is listed as an exception is one."""
    assert {room: set(names) for room, names in unreached().items()} == NOT_YET
