"""The pages of both benchmarks: a title, a sentence, figures, and a table of the rows."""

from __future__ import annotations

from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from specds.bench.harness import Columns, Row

Series = dict[str, tuple[list[Any], list[Any]]]
"""The x and y values of each line by its name."""


def page_of(
    title: str,
    about: str,
    figures: Iterable[tuple[str, Any]],
    rows: Sequence[Row],
    columns: Columns,
) -> str:
    """A page that needs nothing else: the plotting library's script is within.

    Args:
        title: Of the page.
        about: What was measured on what, in a sentence.
        figures: The id and the figure of each plot.
        rows: Of the table.
        columns: Of the table.
    """
    parts = [f"<p>{escape(about)}</p>"]
    for number, (name, figure) in enumerate(figures):
        parts.append(figure.to_html(full_html=False, include_plotlyjs=number == 0, div_id=name))
    return _PAGE.format(title=title, body="\n".join([*parts, _table(rows, columns)]))


def require_plotly() -> Any:
    """The plotting library.

    Raises:
        ImportError: It is not installed.
    """
    try:
        return import_module("plotly.graph_objects")
    except ImportError as error:
        raise ImportError("--html needs plotly: pip install 'specds[bench]'") from error


def line_plot(
    title: str,
    x: str,
    y: str,
    series: Series,
    colors: Mapping[str, str] | None = None,
    **layout: Any,
) -> Any:
    """A line through the points of each name."""
    graphs = require_plotly()
    lines = [
        graphs.Scatter(
            x=xs, y=ys, name=name, mode="lines+markers", line={"color": (colors or {}).get(name)}
        )
        for name, (xs, ys) in series.items()
    ]
    return graphs.Figure(lines).update_layout(title=title, xaxis_title=x, yaxis_title=y, **layout)


def share_bars(title: str, shares: Mapping[str, Mapping[str, float]]) -> Any:
    """A bar for each name, made of shares of one."""
    graphs = require_plotly()
    parts = list(dict.fromkeys(part for share in shares.values() for part in share))
    bars = [
        graphs.Bar(name=part, x=list(shares), y=[share.get(part, 0) for share in shares.values()])
        for part in parts
    ]
    return graphs.Figure(bars).update_layout(title=title, barmode="stack", yaxis_tickformat=".0%")


def _table(rows: Sequence[Row], columns: Columns) -> str:
    """All rows as a table; what is null is left empty."""
    head = "".join(f"<th>{title}</th>" for _, title, _ in columns)
    lines = [
        "".join(
            f"<td>{'' if row[name] is None else escape(shown(row[name]))}</td>"
            for name, _, shown in columns
        )
        for row in rows
    ]
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table>\n<tr>{head}</tr>\n{body}\n</table>"


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font-family: sans-serif; margin: 2em auto; max-width: 70em; }}
table {{ border-collapse: collapse; font-size: 0.8em; }}
td, th {{ border-bottom: 1px solid #ccc; padding: 0.2em 0.6em; text-align: right; }}
td:nth-child(-n+3), th:nth-child(-n+3) {{ text-align: left; }}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""
