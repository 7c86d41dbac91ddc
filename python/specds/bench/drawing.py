"""Lines as SVG and bars as HTML, without a script, in the colours of the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from types import MappingProxyType
from typing import NamedTuple

from specds.terminal import quantity

_WIDTH, _HEIGHT = 720, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 14, 44
_DASHES = ("none", "6 4", "2 3", "9 3 2 3")
_COLOURS = 8


class Style(NamedTuple):
    """How a line or a bar looks: a colour for each drafter, a dash for each datastore.

    Attributes:
        colour: Number of one of the page's colours, or a CSS variable of it.
        dash: Number of a dash pattern.
    """

    colour: int | str = 0
    dash: int = 0

    @property
    def stroke(self) -> str:
        return f'stroke="{self.fill}" stroke-dasharray="{_DASHES[self.dash % len(_DASHES)]}"'

    @property
    def fill(self) -> str:
        known = self.colour if isinstance(self.colour, str) else f"c{self.colour % _COLOURS}"
        return f"var(--{known})"


Points = tuple[list[float], list[float]]
Styles = dict[str, Style]


def _axis(
    values: Sequence[float], start: float, end: float, *, log: bool = False
) -> tuple[Callable[[float], float], list[float]]:
    """Maps values to coordinates, and says where ticks are.

    A linear axis starts at zero unless all values are far above.
    """
    low, high = min(values, default=1.0), max(values, default=1.0)
    of = math.log10 if log else float
    if log:
        low, high = (low / 1.2, high * 1.2) if low == high else (low, high)
        tens = range(math.floor(of(low)), math.ceil(of(high)) + 1)
        decades = [10.0**ten * factor for ten in tens for factor in (1, 2, 5)]
        ticks = [tick for tick in decades if low <= tick <= high] or [low, high]
    else:
        low = 0.0 if 0 < low < 0.5 * high else low
        rough = max((high - low or abs(high) or 1.0) / 5, 1e-300)
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough)
        first = math.floor(low / step)
        ticks = [
            step * number for number in range(first, max(math.ceil(high / step), first + 1) + 1)
        ]
        low, high = ticks[0], ticks[-1]

    def place(value: float) -> float:
        share = (of(value) - of(low)) / (of(high) - of(low))
        return round(start + share * (end - start), 1)

    return place, ticks


def lines(
    series: Mapping[str, Points],
    styles: Styles,
    x_title: str,
    y_title: str,
    *,
    log_x: bool = False,
    sizes: Mapping[str, Sequence[float]] | None = None,
) -> str:
    """Draws a line with its points for each name; the values of a point are its tooltip.

    The area of a mark grows with the point's number in `sizes`.
    """
    x_of, x_ticks = _axis(
        [x for xs, _ in series.values() for x in xs], _LEFT, _WIDTH - _RIGHT, log=log_x
    )
    y_of, y_ticks = _axis([y for _, ys in series.values() for y in ys], _HEIGHT - _BOTTOM, _TOP)
    parts = []
    for tick in y_ticks:
        y = y_of(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(_text(quantity(tick), f'x="{_LEFT - 8}" y="{y + 4}"', "end", "faint"))
    last = -math.inf
    for tick in x_ticks:
        x = x_of(tick)
        if x - last >= 40:  # else they would run into each other
            last = x
            place = f'x="{x}" y="{_HEIGHT - _BOTTOM + 18}"'
            parts.append(_text(quantity(tick), place, "middle", "faint"))
    side = f'transform="translate(14 {(_HEIGHT - _BOTTOM) / 2 + _TOP}) rotate(-90)"'
    below = f'x="{(_WIDTH + _LEFT - _RIGHT) / 2}" y="{_HEIGHT - 6}"'
    parts += [_text(y_title, side, "middle"), _text(x_title, below, "middle")]
    for name, (xs, ys) in series.items():
        style = styles.get(name, Style())
        places = [(x_of(x), y_of(y)) for x, y in zip(xs, ys, strict=True)]
        joined = " ".join(f"{x},{y}" for x, y in places)
        parts.append(f'<polyline points="{joined}" fill="none" stroke-width="2" {style.stroke}/>')
        weights = (sizes or {}).get(name) or [1.0] * len(xs)
        most = max(weights, default=1.0)
        for (cx, cy), x, y, weight in zip(places, xs, ys, weights, strict=True):
            radius = 3.5 if sizes is None else 1.5 + 6.5 * math.sqrt(weight / most)
            told = escape(f"{name}: {x:.4g}, {y:.4g}")
            parts.append(
                f'<circle cx="{cx}" cy="{cy}" r="{radius:.1f}" fill="{style.fill}">'
                f"<title>{told}</title></circle>"
            )
    box = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
    drawn = f'<div class="scroll"><svg class="plot" {box}>{"".join(parts)}</svg></div>'
    return drawn + legend({name: styles.get(name, Style()) for name in series})


def _text(text: str, place: str, anchor: str, kind: str = "") -> str:
    return f'<text class="{kind}" {place} text-anchor="{anchor}">{escape(text)}</text>'


def bars(
    groups: Mapping[str, Mapping[str, float]],
    styles: Styles,
    spread: Mapping[tuple[str, str], tuple[float, float]] = MappingProxyType({}),
) -> str:
    """Draws a bar with its value for each name of each group.

    `spread` holds the least and the greatest value by group and name, where there are several.
    """
    longest = max((value for values in groups.values() for value in values.values()), default=0)
    rows = []
    for group, values in groups.items():
        rows.append(f'<b class="group">{escape(group)}</b>')
        for name, value in values.items():
            told = f"{value:.3g}"
            if (group, name) in spread:
                least, most = spread[group, name]
                told += f" ({least:.3g} to {most:.3g})"
            rows.append(_bar(name, [(value / (longest or 1), styles[name], told)], told))
    return f'<div class="bars">{"".join(rows)}</div>'


def shares(of: Mapping[str, Mapping[str, float]], styles: Styles) -> str:
    """Draws a stacked bar for each name; its parts sum to 1."""
    rows = [
        _bar(name, [(share, styles[part], f"{part}: {share:.1%}") for part, share in parts.items()])
        for name, parts in of.items()
    ]
    return f'<div class="bars">{"".join(rows)}</div>' + legend(styles)


def _bar(name: str, parts: Iterable[tuple[float, Style, str]], told: str = "") -> str:
    drawn = "".join(
        f'<i style="width: {100 * length:.1f}%; background: {style.fill}" title="{escape(title)}">'
        "</i>"
        for length, style, title in parts
    )
    return f"<span>{escape(name)}</span><span>{drawn}</span><span>{escape(told)}</span>"


def legend(styles: Styles) -> str:
    entries = (
        '<span><svg viewBox="0 0 32 12" aria-hidden="true">'
        f'<line x1="0" y1="6" x2="32" y2="6" stroke-width="4" {style.stroke}/></svg> '
        f"{escape(name)}</span>"
        for name, style in styles.items()
    )
    return f'<div class="legend">{"".join(entries)}</div>'
