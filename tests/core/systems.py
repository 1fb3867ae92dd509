"""The small dataflows that are explored, each with what may happen to it."""

from __future__ import annotations

from typing import Any

from explorer import Edge, System, Vertex, events

from tidegate.core.barrier.align import UnalignedCheckpointConfig

OFF = UnalignedCheckpointConfig(enabled=False)
FORCED = UnalignedCheckpointConfig(force_unaligned=True)
JOIN = 2  # the fan-in's index in two()


def pair(count: int, watermarks: bool = False, **what: Any) -> System:
    """Source and sink: a single input."""
    return System(vertices=(Vertex("S", events("s", count, watermarks)), Vertex("K")), edges=(Edge(0, 0, 1, 0),), **what)


def chain(count: int, **what: Any) -> System:
    """Source, operator, sink."""
    return System(
        vertices=(Vertex("S", events("s", count)), Vertex("M"), Vertex("K")),
        edges=(Edge(0, 0, 1, 0), Edge(1, 0, 2, 0)),
        **what,
    )


def lasting(count: int, last: int, **what: Any) -> System:
    """Source, operator, sink: the operator has rows of its own to emit when its input has ended."""
    return System(
        vertices=(Vertex("S", events("s", count)), Vertex("M", last=events("m", last)), Vertex("K")),
        edges=(Edge(0, 0, 1, 0), Edge(1, 0, 2, 0)),
        **what,
    )


def two(left: int, right: int, watermarks: bool = False, **what: Any) -> System:
    """Two sources into one fan-in."""
    return System(
        vertices=(
            Vertex("A", events("a", left, watermarks)),
            Vertex("B", events("b", right, watermarks)),
            Vertex("J"),
        ),
        edges=(Edge(0, 0, JOIN, 0), Edge(1, 0, JOIN, 1)),
        **what,
    )


def three(counts: tuple[int, int, int], **what: Any) -> System:
    """Three sources into one fan-in."""
    sources = tuple(Vertex(n.upper(), events(n, count)) for n, count in zip("abc", counts, strict=True))
    return System(vertices=(*sources, Vertex("J")), edges=tuple(Edge(v, 0, 3, v) for v in range(3)), **what)


def diamond(count: int, **what: Any) -> System:
    """X to A and B, and both to J: even events go one way, odd ones the other."""
    return System(
        vertices=(Vertex("X", events("x", count)), Vertex("A"), Vertex("B"), Vertex("J")),
        edges=(
            Edge(0, 0, 1, 0, lambda payload: payload[1] % 2 == 0),
            Edge(0, 1, 2, 0, lambda payload: payload[1] % 2 == 1),
            Edge(1, 0, 3, 0),
            Edge(2, 0, 3, 1),
        ),
        **what,
    )


def exchange(count: int, **what: Any) -> System:
    """Two sources, each to both of two sinks: two nodes that fill each other's queues."""
    even, odd = (lambda payload: payload[1] % 2 == 0), (lambda payload: payload[1] % 2 == 1)
    return System(
        vertices=(Vertex("A", events("a", count)), Vertex("B", events("b", count)), Vertex("T"), Vertex("U")),
        edges=(Edge(0, 0, 2, 0, even), Edge(0, 1, 3, 0, odd), Edge(1, 0, 2, 1, odd), Edge(1, 1, 3, 1, even)),
        **what,
    )


def mixed(**what: Any) -> System:
    """A fan-in with one broadcast input: it aligns on both, and its output stays promotable."""
    return System(
        vertices=(
            Vertex("A", events("a", 1)),
            Vertex("B", events("b", 1), aligned_only_outputs=(0,)),
            Vertex("J", aligned_only_inputs=True),
            Vertex("K"),
        ),
        edges=(Edge(0, 0, JOIN, 0), Edge(1, 0, JOIN, 1), Edge(JOIN, 0, 3, 0)),
        **what,
    )


QUICK: dict[str, Any] = {"wire": False, "eager": True}
JOIN_TIMER: dict[str, Any] = {**QUICK, "deadlines": (JOIN,)}

SYSTEMS: tuple[System, ...] = (
    pair(1, True, name="one input, everything", checkpoints=2, aborts=1, crashes=1),
    pair(2, name="one input, tiny queues", credit=1, room=2, checkpoints=2, crashes=1),
    pair(1, name="one input, late news", checkpoints=2, aborts=1, crashes=1, late_news=True),
    chain(2, name="chain, crash", crashes=1),
    chain(2, name="chain, tiny queues", credit=1, room=2, wire=False),
    lasting(1, 2, name="rows at the end, crash", credit=1, crashes=1, wire=False),
    lasting(0, 1, name="rows at the end, everything", checkpoints=2, aborts=1, crashes=1, credit=1, **QUICK),
    lasting(1, 1, name="rows at the end, forced unaligned", config=FORCED, deadlines=(), crashes=1, wire=False),
    lasting(1, 1, name="rows at the end, savepoint", savepoint=True, crashes=1, wire=False),
    two(1, 1, name="two inputs, wires", eager=True),
    two(1, 0, name="two inputs, slow senders, late news", wire=False, late_news=True),
    two(1, 1, name="two inputs, two checkpoints, crash", checkpoints=2, crashes=1, **JOIN_TIMER),
    two(1, 1, True, name="two inputs, watermarks, crash", crashes=1, **JOIN_TIMER),
    two(1, 0, name="two inputs, everything", checkpoints=2, aborts=1, crashes=1, **JOIN_TIMER),
    two(2, 1, name="two inputs, forced unaligned", config=FORCED, deadlines=(), crashes=1, **QUICK),
    two(2, 2, name="two inputs, unaligned mode off", config=OFF, deadlines=(), credit=1, wire=False),
    two(1, 1, name="two inputs, savepoint", savepoint=True, crashes=1, wire=False),
    three((1, 0, 0), name="three inputs", deadlines=(3,), crashes=1, **QUICK),
    three((1, 1, 1), name="three inputs, more events", deadlines=(3,), depth_max=14, **QUICK),
    diamond(2, name="diamond, tiny queues", credit=1, crashes=1, **QUICK),
    exchange(2, name="exchange, tiny queues", credit=1, depth_max=11, wire=False),
    mixed(name="broadcast input", crashes=1, deadlines=(JOIN, 3), **QUICK),
)
