"""Lines as SVG and bars as HTML, without a script, in the colours of the page."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from types import MappingProxyType
from typing import TYPE_CHECKING

from specds.terminal import quantity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_WIDTH, _HEIGHT = 720, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 14, 44
_DASHES = ("", "6 4", "2 3", "9 3 2 3")
_COLOURS = 8


@dataclass(frozen=True)
class Style:
    """How a line or a bar looks: a colour for each drafter, a dash for each datastore.

    Attributes:
        colour: Number of one of the page's colours.
        dash: Number of a dash pattern.
        variable: A CSS variable of the page that overrides `colour`.
    """

    colour: int = 0
    dash: int = 0
    variable: str = ""

    @property
    def stroke(self) -> str:
        """SVG attributes of the line."""
        dash = _DASHES[self.dash % len(_DASHES)]
        return f'stroke="{self.fill}"' + (f' stroke-dasharray="{dash}"' if dash else "")

    @property
    def fill(self) -> str:
        """The colour as CSS."""
        return f"var(--{self.variable or f'c{self.colour % _COLOURS}'})"


Points = tuple[list[float], list[float]]
Styles = dict[str, Style]


class _Axis:
    """Maps values to coordinates; a linear axis starts at zero unless all values are far above."""

    def __init__(
        self, values: Iterable[float], start: float, end: float, *, log: bool = False
    ) -> None:
        known = [value for value in values if value > 0 or not log]
        self._log = log
        low, high = min(known, default=1.0), max(known, default=1.0)
        if log:
            low, high = (low / 1.2, high * 1.2) if low == high else (low, high)
            self.ticks = _decades(low, high)
        else:
            low = 0.0 if low > 0 and low < 0.5 * high else low
            step = _step(high - low or abs(high) or 1.0)
            low, high = math.floor(low / step) * step, math.ceil(high / step) * step
            high = high if high > low else low + step
            count = round((high - low) / step)
            self.ticks = [low + step * number for number in range(count + 1)]
        self._low, self._high, self._start, self._end = low, high, start, end

    def __call__(self, value: float) -> float:
        share = (self._of(value) - self._of(self._low)) / (
            self._of(self._high) - self._of(self._low)
        )
        return round(self._start + share * (self._end - self._start), 1)

    def _of(self, value: float) -> float:
        return math.log10(value) if self._log else value


def _step(span: float) -> float:
    rough = max(span / 5, 1e-300)
    unit = 10.0 ** math.floor(math.log10(rough))
    return next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough)


def _decades(low: float, high: float) -> list[float]:
    tens = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [10.0**ten * factor for ten in tens for factor in (1, 2, 5)]
    return [tick for tick in ticks if low <= tick <= high] or [low, high]


def lines(
    series: Mapping[str, Points],
    styles: Styles,
    x_title: str,
    y_title: str,
    *,
    log_x: bool = False,
    sizes: Mapping[str, Sequence[float]] | None = None,
) -> str:
    """Draws a line through the points of each name, with a legend.

    The area of a mark grows with the point's number in `sizes`.
    """
    all_x = [x for xs, _ in series.values() for x in xs]
    all_y = [y for _, ys in series.values() for y in ys]
    x_axis = _Axis(all_x, _LEFT, _WIDTH - _RIGHT, log=log_x)
    y_axis = _Axis(all_y, _HEIGHT - _BOTTOM, _TOP)
    parts = [*_grid(y_axis, y_title), *_x_ticks(x_axis, x_title)]
    for name, (xs, ys) in series.items():
        style = styles.get(name, Style())
        places = [(x_axis(x), y_axis(y)) for x, y in zip(xs, ys, strict=True)]
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
    return _drawn(parts) + legend({name: styles.get(name, Style()) for name in series})


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
    """Draws the legend."""
    entries = (
        '<span><svg viewBox="0 0 32 12" aria-hidden="true">'
        f'<line x1="0" y1="6" x2="32" y2="6" stroke-width="4" {style.stroke}/></svg> '
        f"{escape(name)}</span>"
        for name, style in styles.items()
    )
    return f'<div class="legend">{"".join(entries)}</div>'


def _grid(axis: _Axis, title: str) -> Iterable[str]:
    for tick in axis.ticks:
        y, told = axis(tick), quantity(tick)
        yield f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>'
        yield f'<text class="faint" x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{told}</text>'
    yield (
        f'<text transform="translate(14 {(_HEIGHT - _BOTTOM) / 2 + _TOP}) rotate(-90)" '
        f'text-anchor="middle">{escape(title)}</text>'
    )


def _x_ticks(axis: _Axis, title: str) -> Iterable[str]:
    last = -math.inf
    for tick in axis.ticks:
        x = axis(tick)
        if x - last < 40:  # they would run into each other
            continue
        last = x
        yield (
            f'<text class="faint" x="{x}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">'
            f"{quantity(tick)}</text>"
        )
    middle = (_WIDTH + _LEFT - _RIGHT) / 2
    yield f'<text x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle">{escape(title)}</text>'


def _drawn(parts: Iterable[str]) -> str:
    box = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
    return f'<div class="scroll"><svg class="plot" {box}>{"".join(parts)}</svg></div>'
