"""Bar charts of reports, as SVG files without references to other files."""

from collections.abc import Sequence
from html import escape

_ROW, _BAR, _CHARACTER = 22, 320, 7.3
_STYLE = """
text { font: 12px monospace; fill: #1b1b1f } rect { fill: #3b6fd4 }
@media (prefers-color-scheme: dark) { text { fill: #ececf1 } rect { fill: #8ab4ff } }
"""


def bar_chart(title: str, bars: Sequence[tuple[str, float]]) -> str:
    """Return a chart with a bar for each label and value, in the color scheme of its viewer."""
    left = 12 + _CHARACTER * max((len(label) for label, _ in bars), default=0)
    longest = max((value for _, value in bars), default=0) or 1
    lines = [f'<text x="4" y="16">{escape(title)}</text>']
    for number, (label, value) in enumerate(bars, 1):
        y, width = number * _ROW, _BAR * value / longest
        lines += [
            f'<text x="4" y="{y + 16}">{escape(label)}</text>',
            f'<rect x="{left:.0f}" y="{y + 4}" width="{width:.1f}" height="{_ROW - 6}"/>',
            f'<text x="{left + width + 6:.0f}" y="{y + 16}">{value:.2f}</text>',
        ]
    width = max(left + _BAR + 60, 8 + _CHARACTER * len(title))
    size = f'width="{width:.0f}" height="{(len(bars) + 1) * _ROW + 8}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<style>{_STYLE}</style>'
    return "\n".join([head, *lines, "</svg>\n"])
