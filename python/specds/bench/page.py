"""Pages of HTML that load nothing else: templates, lines as SVG, stacked bars."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib.resources import files

from specds.terminal import quantity

_WIDTH, _HEIGHT = 720, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 14, 44
_COLOURS = 8

Points = tuple[list[float], list[float]]


def figure(name: str, title: str, caption: str, drawn: str) -> str:
    """A plot of the page, its id the name."""
    return (
        f'<figure id="{name}"><h2>{escape(title)}</h2>{drawn}'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _axis(
    values: Sequence[float], start: float, end: float, *, log: bool = False
) -> tuple[Callable[[float], float], list[float]]:
    """Maps values to coordinates, and says where ticks are; a linear axis starts at zero."""
    high = max(values, default=1.0) or 1.0
    if log:
        low, high, of = min(values, default=1.0) / 1.2, high * 1.2, math.log10
        tens = range(math.floor(of(low)), math.ceil(of(high)))
        marks = [10.0**ten * factor for ten in tens for factor in (1, 2, 5)]
        ticks = [mark for mark in marks if low <= mark <= high] or [low, high]
    else:
        low, of = 0.0, float
        unit = 10.0 ** math.floor(math.log10(high / 5))
        step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if 5 * unit * factor >= high)
        ticks = [step * number for number in range(math.ceil(high / step) + 1)]
        high = ticks[-1]

    def place(value: float) -> float:
        share = (of(value) - of(low)) / (of(high) - of(low))
        return round(start + share * (end - start), 1)

    return place, ticks


def lines(series: Mapping[str, Points], x_title: str, y_title: str, *, log_x: bool = False) -> str:
    """Draws a line with its points for each name; the values of a point are its tooltip."""
    x_of, x_ticks = _axis(
        [x for xs, _ in series.values() for x in xs], _LEFT, _WIDTH - _RIGHT, log=log_x
    )
    y_of, y_ticks = _axis([y for _, ys in series.values() for y in ys], _HEIGHT - _BOTTOM, _TOP)
    parts = []
    for tick in y_ticks:
        y = y_of(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(_text(quantity(tick), f'x="{_LEFT - 8}" y="{y + 4}"', "end", "faint"))
    for tick in x_ticks:
        place = f'x="{x_of(tick)}" y="{_HEIGHT - _BOTTOM + 18}"'
        parts.append(_text(quantity(tick), place, "middle", "faint"))
    side = f'transform="translate(14 {(_HEIGHT - _BOTTOM) / 2 + _TOP}) rotate(-90)"'
    below = f'x="{(_WIDTH + _LEFT - _RIGHT) / 2}" y="{_HEIGHT - 6}"'
    parts += [_text(y_title, side, "middle"), _text(x_title, below, "middle")]
    # Sorted, so that a name has one colour in all plots.
    colour_of = {name: f"var(--c{at % _COLOURS})" for at, name in enumerate(sorted(series))}
    for name, (xs, ys) in series.items():
        colour = colour_of[name]
        places = [(x_of(x), y_of(y)) for x, y in zip(xs, ys, strict=True)]
        joined = " ".join(f"{x},{y}" for x, y in places)
        parts.append(
            f'<polyline points="{joined}" fill="none" stroke-width="2" stroke="{colour}"/>'
        )
        for (cx, cy), x, y in zip(places, xs, ys, strict=True):
            values = escape(f"{name}: {x:.4g}, {y:.4g}")
            mark = f'<circle cx="{cx}" cy="{cy}" r="3.5" fill="{colour}">'
            parts.append(f"{mark}<title>{values}</title></circle>")
    box = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
    drawn = f'<div class="scroll"><svg class="plot" {box}>{"".join(parts)}</svg></div>'
    return drawn + _legend(colour_of)


def _text(text: str, place: str, anchor: str, kind: str = "") -> str:
    return f'<text class="{kind}" {place} text-anchor="{anchor}">{escape(text)}</text>'


def shares(of: Mapping[str, Mapping[str, float]], colour_of: Mapping[str, str]) -> str:
    """Draws a stacked bar for each name; its parts sum to 1."""
    rows = []
    for name, parts in of.items():
        drawn = "".join(
            f'<i style="width: {100 * share:.1f}%; background: {colour_of[part]}" '
            f'title="{escape(part)}: {share:.1%}"></i>'
            for part, share in parts.items()
        )
        rows.append(f"<span>{escape(name)}</span><span>{drawn}</span>")
    return f'<div class="bars">{"".join(rows)}</div>' + _legend(colour_of)


def _legend(colour_of: Mapping[str, str]) -> str:
    entries = (
        f'<span><i style="background: {colour}"></i>{escape(name)}</span>'
        for name, colour in colour_of.items()
    )
    return f'<div class="legend">{"".join(entries)}</div>'


def filled(page: str, **values: str) -> str:
    """A page with the values and the assets that it names in double braces."""

    def value_of(found: re.Match[str]) -> str:
        name = found[1]
        return values[name] if name in values else asset(name)

    return re.sub(r"\{\{([\w.]+)\}\}", value_of, page)


def asset(name: str) -> str:
    return (files("specds.bench") / "assets" / name).read_text(encoding="utf-8")
