"""The HTML page of a benchmark: headline, answers step by step, plots with captions, a table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specds.bench.harness import Columns, Document, Row


def figure(name: str, title: str, caption: str, drawn: str) -> str:
    """A plot of the page, its id the name."""
    return (
        f'<figure id="{name}"><h2>{escape(title)}</h2>{drawn}'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def page_of(
    title: str,
    headline: str,
    about: str,
    document: Document,
    figures: Iterable[str],
    columns: tuple[Sequence[str], Columns, str],
    stories: Sequence[dict[str, Any]] = (),
) -> str:
    """One HTML file that loads nothing else.

    `columns` of the table: the fields that name a row, the figures, and a caption.
    """
    run = f"{document['date']}, {document['machine']}"
    parts = [
        f'<h1>{escape(title)}</h1><p class="headline">{escape(headline)}</p>',
        f'<p class="faint">{escape(about)}<br>{escape(run)}</p>',
        f'<pre class="panel">{escape(document["command"])}</pre>',
        _STORIES if stories else "",
        *figures,
        f"<h2>All figures</h2>{_table(document['rows'], *columns[:2])}",
        f'<p class="faint">{escape(columns[2])}</p>',
        f"<script>{_asset('sort.js')}</script>",
    ]
    if stories:
        # As JSON in a script, `<` would end it where a text says so.
        told = json.dumps(stories).replace("<", "\\u003c")
        scripts = "".join(map(_asset, ("tree.js", "story.js", "stories.js")))
        parts.append(f"<script>const stories = {told};\n{scripts}</script>")
    return _PAGE.format(title=escape(title), style=_asset("style.css"), body="\n".join(parts))


def _table(rows: Sequence[Row], names: Sequence[str], figures: Columns) -> str:
    """A sortable table of all rows; null is an empty cell."""
    texts = (*names, "status", "reason")
    named = [(field, field, "{}") for field in texts]
    columns = [*named[:-2], *figures, *named[-2:]]

    def side(field: str) -> str:
        return ' class="name"' if field in texts else ""

    def cell(row: Row, field: str, form: str) -> str:
        value = row[field]
        if value is None:
            return "<td></td>"
        told = PurePath(value).name if field == "datastore" else form.format(value)
        return f'<td{side(field)} data-of="{escape(str(value))}">{escape(told)}</td>'

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


def _asset(name: str) -> str:
    return (files("specds.bench") / "assets" / name).read_text(encoding="utf-8")


_STORIES = """<h2>Answers, step by step</h2>
<p class="faint">Each colour is what drafted the words; plain ones are the model's own. The step
chosen shows the whole draft, what of it was accepted, and where its context occurs in the
datastore.</p>
<p><label>Answer <select id="which"></select></label></p>
<div class="legend" id="sources"></div><pre class="panel text" id="said"></pre>
<p><label>Step <output id="at"></output></label>
<input type="range" id="step" min="0" value="0" aria-label="step"></p>
<div class="panel scroll" id="tree"></div><div id="why"></div>"""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body>
{body}
</body>
</html>
"""
