"""Tables of the rows of `make bench-real`, by kind of request."""

from collections import defaultdict
from statistics import mean

SETTING = ("model", "dtype", "threads", "mode")
WAYS = ("generate", "transformers-prompt-lookup", "plain", "specds")
_HEAD = (
    "| kind | generate, tokens/s | prompt lookup | loop without drafts | specds | min to max "
    "| tokens per pass | prompt, passes, rest | same text |"
)


def print_tables(rows):
    """Print a table for each setting, then one of specds' ratios with a column per setting."""
    by_setting = defaultdict(list)
    for row in rows:
        by_setting[tuple(row[name] for name in SETTING)].append(row)
    for setting, found in by_setting.items():
        print(f"\n{title(setting)}\n\n{_HEAD}\n|{' --- |' * 9}")
        for kind, of_kind in _grouped(found).items():
            print(line(kind, of_kind))
        print(line("all", found))
    if len(by_setting) > 1:
        print_ratios(by_setting)


def print_ratios(by_setting):
    print(f"\n| kind | {' | '.join(map(title, by_setting))} |\n|{' --- |' * (1 + len(by_setting))}")
    tables = [_grouped(rows) for rows in by_setting.values()]
    for kind in dict.fromkeys(kind for table in tables for kind in table):
        cells = [
            f"{mean(ratios(table[kind], 'specds')):.2f}" if kind in table else ""
            for table in tables
        ]
        print(f"| {kind} | {' | '.join(cells)} |")


def title(setting):
    model, dtype, threads, mode = setting
    return f"{model}, {dtype}, {threads} thread{'s' * (threads > 1)}, {mode}"


def line(kind, rows):
    ways = {way: [row for row in rows if row["way"] == way] for way in WAYS}
    baseline, ours = ways["generate"], ways["specds"]
    speed = sum(len(row["text"]) for row in baseline) / sum(row["seconds"] for row in baseline)
    lookup, loop, found = (ratios(rows, way) for way in WAYS[1:])
    tokens_per_pass = sum(len(row["text"]) for row in ours) / sum(row["passes"] for row in ours)
    texts = {_key(row): row["text"] for row in baseline}
    same = sum(row["text"] == texts[_key(row)] for row in ours)
    prompt, passes = (mean(row["shares"][of] for row in ours) for of in ("prefill", "forward"))
    return (
        f"| {kind} | {speed:.1f} | {mean(lookup):.2f} | {mean(loop):.2f} | **{mean(found):.2f}** "
        f"| {min(found):.2f} to {max(found):.2f} | {tokens_per_pass:.2f} "
        f"| {prompt:.0%}, {passes:.0%}, {1 - prompt - passes:.1%} | {same} of {len(ours)} |"
    )


def ratios(rows, way):
    """Return the speed of a way over `generate`, by request."""
    per_second = {(_key(row), row["way"]): len(row["text"]) / row["seconds"] for row in rows}
    return [
        speed / per_second[where, "generate"]
        for (where, name), speed in per_second.items()
        if name == way
    ]


def _key(row):
    return row["kind"], row["number"]


def _grouped(rows):
    by_kind = defaultdict(list)
    for row in rows:
        by_kind[row["kind"]].append(row)
    return by_kind
