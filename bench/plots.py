"""Plots as SVG text: bars and curves, without a dependency, readable on a light and on a dark page. No I/O."""

import math
from collections.abc import Mapping, Sequence
from typing import Final
from xml.sax.saxutils import escape

WIDTH: Final = 720
BAR, GAP, LABEL, NUMBER = 20, 8, 210, 110
LEFT, RIGHT, TOP, BOTTOM, HEIGHT = 70, 20, 40, 50, 320
OURS, OTHERS = "#2563eb", "#94a3b8"
LINES: Final = ("#2563eb", "#d97706", "#059669", "#9333ea")
INK: Final = "#64748b"  # in between: has contrast on white and on black


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, weight: str = "normal") -> str:
    font = f'font-family="sans-serif" font-size="{size}" font-weight="{weight}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{INK}" text-anchor="{anchor}" {font}>{escape(text)}</text>'


def _page(height: float, title: str, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img">'
    name = f"<title>{escape(title)}</title>"
    return "\n".join([head, name, _text(0, 18, title, size=14, weight="bold"), *parts, "</svg>", ""])


def format_figure(value: float) -> str:
    """Three significant digits, with thousands."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def bars(title: str, values: Mapping[str, float], *, unit: str, ours: frozenset[str] = frozenset()) -> str:
    """One bar a subject, from zero; ours in a colour of its own."""
    most = max(values.values(), default=0.0) or 1.0
    room = WIDTH - LABEL - NUMBER
    parts = []
    for number, (name, value) in enumerate(values.items()):
        y = 34 + number * (BAR + GAP)
        length = room * max(value, 0.0) / most
        colour = OURS if name in ours else OTHERS
        parts += [
            _text(LABEL - 8, y + 15, name, anchor="end"),
            f'<rect x="{LABEL}" y="{y}" width="{max(length, 1):.1f}" height="{BAR}" rx="2" fill="{colour}"/>',
            _text(LABEL + length + 6, y + 15, f"{format_figure(value)} {unit}"),
        ]
    return _page(40 + len(values) * (BAR + GAP), title, parts)


def lines(title: str, x: Sequence[float], series: Mapping[str, Sequence[float]], *, x_title: str, y_title: str) -> str:
    """Curves over one axis: logarithmic where x spans a factor of a hundred, values from zero."""
    top = max((value for values in series.values() for value in values), default=1.0) * 1.1 or 1.0
    logarithmic = x[0] > 0 and x[-1] / x[0] >= 100

    def at(value: float) -> float:
        share = math.log(value / x[0]) / math.log(x[-1] / x[0]) if logarithmic else value / x[-1]
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def up(value: float) -> float:
        return HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM)

    parts = []
    for step in range(5):
        value = top * step / 4
        y = up(value)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{INK}" stroke-opacity="0.25"/>')
        parts.append(_text(LEFT - 6, y + 4, format_figure(value), anchor="end", size=11))
    parts += [_text(at(value), HEIGHT - BOTTOM + 16, f"{value:,.0f}", anchor="middle", size=11) for value in x]
    parts.append(_text(WIDTH - RIGHT, HEIGHT - 14, x_title, anchor="end"))
    parts.append(_text(LEFT, 34, y_title, size=11))
    for number, (name, values) in enumerate(series.items()):
        colour = LINES[number % len(LINES)]
        points = [(at(place), up(value)) for place, value in zip(x, values, strict=True)]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in points]
        left = LEFT + number * 170
        parts.append(f'<rect x="{left}" y="{HEIGHT - 24}" width="12" height="12" fill="{colour}"/>')
        parts.append(_text(left + 18, HEIGHT - 14, name))
    return _page(HEIGHT, title, parts)
