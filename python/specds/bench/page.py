"""Pages of HTML that load nothing else: a report, lines as SVG, bars."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from specds.terminal import quantity

if TYPE_CHECKING:
    from specds.bench.harness import Columns, Document, Row

_WIDTH, _HEIGHT = 720, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 14, 44
_COLOURS = 8
_DASHES = ("none", "6 4", "2 3", "9 3 2 3")

Points = tuple[list[float], list[float]]


def report(
    title: str,
    headline: str,
    about: str,
    document: Document,
    figures: Iterable[str],
    table: tuple[Sequence[str], Columns, str],
    stories: Sequence[dict[str, Any]] = (),
) -> str:
    """The page of a benchmark: headline, answers step by step, plots, a table.

    `table` has the fields that name a row, the figures, and a caption.
    """
    names, columns, caption = table
    return filled(
        asset("report.html"),
        title=escape(title),
        headline=escape(headline),
        about=escape(f"{about}. {document['date']}, {document['machine']}"),
        command=escape(document["command"]),
        figures="\n".join(figures),
        table=_table(document["rows"], names, columns),
        caption=escape(caption),
        # As JSON in a script, `<` would end it where a text says so.
        stories=json.dumps(stories).replace("<", "\\u003c"),
    )


def colours(names: Iterable[str]) -> dict[str, str]:
    """A colour of the page for each name."""
    return {name: f"var(--c{at % _COLOURS})" for at, name in enumerate(dict.fromkeys(names))}


def dashes(names: Iterable[str]) -> dict[str, str]:
    """A pattern of dashes for each name, the first one solid."""
    return {name: _DASHES[at % len(_DASHES)] for at, name in enumerate(dict.fromkeys(names))}


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


def lines(
    series: Mapping[str, Points],
    x_title: str,
    y_title: str,
    *,
    colour_of: Mapping[str, str],
    dash_of: Mapping[str, str],
    log_x: bool = False,
) -> str:
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
    for name, (xs, ys) in series.items():
        colour = colour_of[name]
        places = [(x_of(x), y_of(y)) for x, y in zip(xs, ys, strict=True)]
        joined = " ".join(f"{x},{y}" for x, y in places)
        stroke = f'stroke="{colour}" stroke-dasharray="{dash_of[name]}"'
        parts.append(f'<polyline points="{joined}" fill="none" stroke-width="2" {stroke}/>')
        for (cx, cy), x, y in zip(places, xs, ys, strict=True):
            values = escape(f"{name}: {x:.4g}, {y:.4g}")
            mark = f'<circle cx="{cx}" cy="{cy}" r="3.5" fill="{colour}">'
            parts.append(f"{mark}<title>{values}</title></circle>")
    box = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
    drawn = f'<div class="scroll"><svg class="plot" {box}>{"".join(parts)}</svg></div>'
    return drawn + _legend({name: colour_of[name] for name in series}, dash_of)


def _text(text: str, place: str, anchor: str, kind: str = "") -> str:
    return f'<text class="{kind}" {place} text-anchor="{anchor}">{escape(text)}</text>'


def bars(
    groups: Mapping[str, Mapping[str, tuple[float, str]]], colour_of: Mapping[str, str]
) -> str:
    """Draws a bar for each name of each group: its value, and what is written beside it."""
    longest = max((value for of in groups.values() for value, _ in of.values()), default=0) or 1
    rows = []
    for group, values in groups.items():
        rows.append(f'<b class="group">{escape(group)}</b>')
        for name, (value, text) in values.items():
            rows.append(_bar(name, [(value / longest, colour_of[name], text)], text))
    return f'<div class="bars">{"".join(rows)}</div>'


def shares(of: Mapping[str, Mapping[str, float]], colour_of: Mapping[str, str]) -> str:
    """Draws a stacked bar for each name; its parts sum to 1."""
    rows = [
        _bar(
            name,
            [(share, colour_of[part], f"{part}: {share:.1%}") for part, share in parts.items()],
        )
        for name, parts in of.items()
    ]
    return f'<div class="bars">{"".join(rows)}</div>' + _legend(
        colour_of, dict.fromkeys(colour_of, _DASHES[0])
    )


def _bar(name: str, parts: Iterable[tuple[float, str, str]], text: str = "") -> str:
    drawn = "".join(
        f'<i style="width: {100 * length:.1f}%; background: {colour}" title="{escape(title)}"></i>'
        for length, colour, title in parts
    )
    return f"<span>{escape(name)}</span><span>{drawn}</span><span>{escape(text)}</span>"


def _legend(colour_of: Mapping[str, str], dash_of: Mapping[str, str]) -> str:
    entries = (
        f'<span><svg viewBox="0 0 24 4"><path d="M0 2h24" stroke="{colour}" stroke-width="4" '
        f'stroke-dasharray="{dash_of[name]}"/></svg>{escape(name)}</span>'
        for name, colour in colour_of.items()
    )
    return f'<div class="legend">{"".join(entries)}</div>'


def _table(rows: Sequence[Row], names: Sequence[str], figures: Columns) -> str:
    """A sortable table of all rows; null is an empty cell."""
    texts = (*names, "status", "reason")
    columns = [*((field, field, "{}") for field in texts), *figures]

    def side(field: str) -> str:
        return ' class="name"' if field in texts else ""

    def cell(row: Row, field: str, form: str) -> str:
        value = row[field]
        if value is None:
            return "<td></td>"
        text = PurePath(value).name if field == "datastore" else form.format(value)
        return f'<td{side(field)} data-of="{escape(str(value))}">{escape(text)}</td>'

    head = "".join(
        f'<th{side(field)} title="{field}"><button>{escape(title)}</button></th>'
        for field, title, _ in columns
    )
    body = "\n".join(
        f"<tr>{''.join(cell(row, field, form) for field, _, form in columns)}</tr>" for row in rows
    )
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def filled(page: str, **values: str) -> str:
    """A page with the values and the assets that it names in double braces."""

    def value_of(found: re.Match[str]) -> str:
        name = found[1]
        return values[name] if name in values else asset(name)

    return re.sub(r"\{\{([\w.]+)\}\}", value_of, page)


def asset(name: str) -> str:
    return (files("specds.bench") / "assets" / name).read_text(encoding="utf-8")
