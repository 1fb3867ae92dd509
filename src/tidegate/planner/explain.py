"""Shows a physical plan to people (text, Mermaid) and to programs (JSON).

A shared node is shown once and referred to.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from tidegate.core.checkpoint.config import CheckpointConfig
from tidegate.errors import InvalidUseError
from tidegate.plan.physical import PhysicalPlan
from tidegate.planner.tree import Child, PhysicalNode, physical_tree
from tidegate.values import Json

FORMATS = ("text", "json", "mermaid")


def explain(plan: PhysicalPlan, checkpoint: CheckpointConfig | None = None, format: str = "text") -> str:
    """The plan that runs, with a ``PhysicalBarrier`` below every fan-in.

    Without ``checkpoint`` edges show the default settings.
    """
    if format not in FORMATS:
        raise InvalidUseError(f"explain knows {', '.join(FORMATS)} format={format!r}")
    root = physical_tree(plan, checkpoint)
    match format:
        case "json":
            return _json(plan, root)
        case "mermaid":
            return _mermaid(root)
        case _:
            return _text(plan, root)


def _text(plan: PhysicalPlan, root: PhysicalNode) -> str:
    head = f"Pipeline {plan.job} parallelism={plan.parallelism} key_groups={plan.key_groups}"
    return "\n".join([head, *_lines(root.as_child(), "", "", "", _shared(root), set())]) + "\n"


def _lines(
    child: Child, first: str, rest: str, port: str, shared: dict[PhysicalNode, int], seen: set[PhysicalNode]
) -> Iterator[str]:
    """A node's line, then its children's, each below its branch of the tree."""
    node = child.node
    mark = f" #{shared[node]}" if node in shared else ""
    if node in seen:
        yield f"{first}{port}(see{mark} {node.kind} {node.name})"
        return
    seen.add(node)
    yield f"{first}{port}{_label(node)}{mark}"
    for index, each in enumerate(node.children):
        last = index == len(node.children) - 1
        branch, below = ("└─ ", "   ") if last else ("├─ ", "│  ")
        number = f"[{each.port}] " if len(node.children) > 1 else ""
        yield from _lines(each, rest + branch, rest + below, number, shared, seen)


def _label(node: PhysicalNode) -> str:
    shown = [node.kind, node.name, *(_property(name, value) for name, value in node.properties.items())]
    return " ".join(part for part in shown if part)


def _property(name: str, value: Json) -> str:
    match value:
        case True:
            return name
        case list():
            return f"{name}=[{', '.join(str(each) for each in value)}]"
        case _:
            return f"{name}={' '.join(str(value).split())}"


def _nodes(root: PhysicalNode) -> list[PhysicalNode]:
    """Every node once, parents before children."""
    found: dict[PhysicalNode, None] = {}
    stack = [root]
    while stack:
        node = stack.pop()
        if node not in found:
            found[node] = None
            stack.extend(child.node for child in reversed(node.children))
    return list(found)


def _shared(root: PhysicalNode) -> dict[PhysicalNode, int]:
    """Numbers for the nodes with several parents."""
    parents: dict[PhysicalNode, int] = {}
    for node in _nodes(root):
        for child in node.children:
            parents[child.node] = parents.get(child.node, 0) + 1
    several = [node for node in _nodes(root) if parents.get(node, 0) > 1]
    return {node: number for number, node in enumerate(several, 1)}


def _json(plan: PhysicalPlan, root: PhysicalNode) -> str:
    ids = {node: number for number, node in enumerate(_nodes(root))}
    nodes: list[Json] = [_node_json(node, ids) for node in ids]
    shown: dict[str, Json] = {"job": plan.job, "parallelism": plan.parallelism, "key_groups": plan.key_groups}
    return json.dumps(shown | {"root": ids[root], "nodes": nodes}, indent=2, ensure_ascii=False) + "\n"


def _node_json(node: PhysicalNode, ids: dict[PhysicalNode, int]) -> dict[str, Json]:
    children: list[Json] = [{"id": ids[child.node], "port": child.port} for child in node.children]
    return {
        "id": ids[node],
        "kind": node.kind,
        "name": node.name,
        "properties": node.properties,
        "children": children,
    }


def _mermaid(root: PhysicalNode) -> str:
    ids = {node: f"n{number}" for number, node in enumerate(_nodes(root))}
    lines = ["flowchart BT"]
    lines += [f'  {ids[node]}["{_escaped(_label(node))}"]' for node in ids]
    for node in ids:
        for child in node.children:
            number = f"|{child.port}|" if len(node.children) > 1 else ""
            lines.append(f"  {ids[child.node]} -->{number} {ids[node]}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
