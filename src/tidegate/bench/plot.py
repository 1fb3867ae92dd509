"""Lines over a number axis as a small SVG, written by hand: no plotting library is needed for two lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 40, 55
COLOURS = ("#c0392b", "#2471a3", "#1e8449", "#7d3c98")
TICKS = 5

Points = Sequence[tuple[float, float]]


def svg(title: str, x_label: str, y_label: str, lines: Mapping[str, Points]) -> str:
    """The picture. Both axes begin at 0."""
    points = [point for line in lines.values() for point in line]
    x_max = max((x for x, _ in points), default=0) or 1
    y_max = (max((y for _, y in points), default=0) or 1) * 1.05
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{WIDTH / 2}" y="20" text-anchor="middle" font-size="15">{escape(title)}</text>',
        *_axes(x_max, y_max),
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 12}" text-anchor="middle">{escape(x_label)}</text>',
        f'<text x="16" y="{HEIGHT / 2}" text-anchor="middle" transform="rotate(-90 16 {HEIGHT / 2})">{escape(y_label)}</text>',
    ]
    for index, (name, line) in enumerate(lines.items()):
        parts += _line(name, [(_x(x, x_max), _y(y, y_max)) for x, y in sorted(line)], index)
    return "\n".join([*parts, "</svg>", ""])


def _axes(x_max: float, y_max: float) -> list[str]:
    parts = []
    for tick in range(TICKS + 1):
        x_value, y_value = x_max * tick / TICKS, y_max * tick / TICKS
        x, y = _x(x_value, x_max), _y(y_value, y_max)
        parts += [
            f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#ddd"/>',
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{y_value:,.0f}</text>',
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{x_value:,.0f}</text>',
        ]
    return parts


def _line(name: str, points: Points, index: int) -> list[str]:
    colour = COLOURS[index % len(COLOURS)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
    legend_y = TOP + 6 + 18 * index
    return [
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>',
        *dots,
        f'<rect x="{LEFT + 12}" y="{legend_y - 4}" width="16" height="3" fill="{colour}"/>',
        f'<text x="{LEFT + 34}" y="{legend_y + 2}">{escape(name)}</text>',
    ]


def _x(value: float, highest: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * value / highest


def _y(value: float, highest: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / highest
