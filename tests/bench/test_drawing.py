"""Plots: each value is drawn at its place, whatever it is, and names are text."""

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from specds.bench.page import bars, colours, dashes, lines, shares

values = st.floats(0.001, 1e9)
points = st.lists(st.tuples(values, values), min_size=1, max_size=9)
names = st.text(st.sampled_from("ab<>&\"' "), min_size=1, max_size=4)


def parsed(drawn):
    return ElementTree.fromstring(f"<div>{drawn}</div>")


@given(st.dictionaries(names, points, min_size=1, max_size=3), st.booleans())
def test_marks_lie_within_the_plot_in_the_order_of_their_values(series, log_x):
    columns = {n: tuple(map(list, zip(*p, strict=True))) for n, p in series.items()}
    styles = {"colour_of": colours(columns), "dash_of": dashes(columns)}
    drawn = lines(columns, "x", "y", **styles, log_x=log_x)
    marks = [(float(c.get("cx")), float(c.get("cy"))) for c in parsed(drawn).iter("circle")]
    given_points = [point for of_name in series.values() for point in of_name]
    assert len(marks) == len(given_points)
    assert all(0 <= x <= 720 and 0 <= y <= 340 for x, y in marks)
    for (x0, y0), (cx0, cy0) in zip(given_points, marks, strict=True):
        for (x1, y1), (cx1, cy1) in zip(given_points, marks, strict=True):
            assert x0 >= x1 or cx0 <= cx1 + 0.1
            assert y0 >= y1 or cy0 >= cy1 - 0.1


groups = st.dictionaries(names, st.dictionaries(names, st.floats(0, 1e6), min_size=1), min_size=1)


@given(groups)
def test_bars_are_as_long_as_their_values(groups):
    texts = {g: {n: (v, f"{v}<") for n, v in values.items()} for g, values in groups.items()}
    colour_of = colours(name for values in groups.values() for name in values)
    lengths = [bar.get("style") for bar in parsed(bars(texts, colour_of)).iter("i")]
    longest = max(value for values in groups.values() for value in values.values())
    expected = [value for values in groups.values() for value in values.values()]
    for length, value in zip(lengths, expected, strict=True):
        assert length.startswith(f"width: {100 * value / (longest or 1):.1f}%;")


@given(st.dictionaries(names, st.floats(0.01, 1), min_size=1))
def test_parts_of_a_bar_fill_it(parts):
    parts = {name: share / sum(parts.values()) for name, share in parts.items()}
    drawn = parsed(shares({"a": parts}, dict.fromkeys(parts, "red"))).find("div")
    widths = [float(bar.get("style").split()[1].rstrip("%;")) for bar in drawn.iter("i")]
    assert len(widths) == len(parts)
    assert abs(sum(widths) - 100) < 0.1 * len(widths)
