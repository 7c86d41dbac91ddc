"""Bar charts of reports, as SVG files without references to other files."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

_ROW, _BAR, _CHARACTER = 22, 320, 7.3
# The ground has the scheme's color too, so that the text is legible on any page.
_STYLE = """
svg { color-scheme: light dark } text { font: 12px monospace; fill: #1b1b1f }
.ground { fill: #fff } .bar { fill: #7fa3e8 } .one { stroke: #c4420a; stroke-dasharray: 4 3 }
.interval { stroke: #1b1b1f; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
  text { fill: #ececf1 } .ground { fill: #16161a } .bar { fill: #3f62a8 } .one { stroke: #ff9a62 }
  .interval { stroke: #ececf1 }
}
"""


class Bar(NamedTuple):
    label: str
    value: float
    interval: Sequence[float] | None = None
    """The least and the largest plausible value; None draws no interval."""


class Chart(NamedTuple):
    title: str
    figure: str
    """The field of a row that bars show. Its value is 1 without drafts."""
    interval: str
    """What an interval is, in words."""
    fields: Sequence[str]
    """Fields that distinguish rows of the same name."""


def bar_chart(title: str, bars: Sequence[Bar], interval: str = "interval") -> str:
    """Return a chart with a bar for each row, a line at 1, and a legend."""
    left = 12 + _CHARACTER * max((len(bar.label) for bar in bars), default=0)
    ends = [max(bar.value, *(bar.interval or ())) for bar in bars if bar.interval] or [0.0]
    longest = max(1.0, *ends, *(bar.value for bar in bars))
    right, below = left + _BAR + 60, (len(bars) + 1) * _ROW

    def x(value: float) -> float:
        return round(left + _BAR * value / longest, 1)

    lines = [f'<text x="4" y="16">{escape(title)}</text>']
    for number, bar in enumerate(bars, 1):
        y, end = number * _ROW, max(bar.value, *(bar.interval or (0.0,)))
        width = round(x(bar.value) - x(0), 1)
        lines += [
            f'<text x="4" y="{y + 16}">{escape(bar.label)}</text>',
            f'<rect class="bar" x="{x(0)}" y="{y + 4}" width="{width}" height="{_ROW - 6}"/>',
        ]
        if bar.interval is not None:
            lines.append(_line("interval", x(bar.interval[0]), y + 12, x(bar.interval[1]), y + 12))
        lines.append(f'<text x="{x(end) + 6:.1f}" y="{y + 16}">{bar.value:.2f}</text>')
    lines.append(_line("one", x(1), _ROW, x(1), below + 4))
    legend = [("one", "1.00: without drafts")]
    if any(bar.interval is not None for bar in bars):
        legend.append(("interval", interval))
    for row, (kind, meaning) in enumerate(legend):
        y = below + 14 + row * (_ROW - 4)
        lines.append(_line(kind, 4, y + 4, 28, y + 4))
        lines.append(f'<text x="36" y="{y + 8}">{escape(meaning)}</text>')
    words = max(len(title), *(5 + len(meaning) for _, meaning in legend))
    size = (
        f'width="{max(right, 8 + _CHARACTER * words):.0f}" height="{below + 20 + 18 * len(legend)}"'
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<style>{_STYLE}</style>'
    ground = '<rect class="ground" width="100%" height="100%"/>'
    return "\n".join([head, ground, *lines, "</svg>\n"])


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'
