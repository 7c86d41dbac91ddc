"""Tables of the rows, by kind of request."""

from collections import defaultdict
from statistics import mean

SETTING = ("model", "dtype", "threads", "mode")
WAYS = ("generate", "prompt lookup", "our loop", "specds")
_HEAD = (
    "| kind | generate, tokens/s | prompt lookup | our loop | specds (by the clock) "
    "| least to most | tokens a pass | prompt, passes, the rest | same text |"
)


def print_tables(rows):
    """A table for each setting, then one of specds' ratios with a column for each setting."""
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


def figures(rows, conditions):
    """What the tables hold, a row for each setting and kind, with the ratio of each request."""
    found = defaultdict(list)
    for row in rows:
        found[tuple(row[name] for name in (*SETTING, "kind"))].append(row)
    for where, some in found.items():
        ours = [row for row in some if row["way"] == "specds"]
        plain = {key(row): row["text"] for row in some if row["way"] == "generate"}
        shares = {of: round(mean(row["shares"][of] for row in ours), 3) for of in ours[0]["shares"]}
        over_generate = {way: [round(x, 3) for x in ratios(some, way)] for way in WAYS[1:]}
        yield {
            **dict(zip((*SETTING, "kind"), where, strict=True)),
            "num_requests": len(ours),
            "over_generate": over_generate,
            "tokens_a_pass": round(tokens_a_pass(ours), 2),
            "num_differing": sum(row["text"] != plain[key(row)] for row in ours),
            "shares": shares,
            "conditions": conditions,
        }


def tokens_a_pass(rows):
    return sum(len(row["text"]) for row in rows) / sum(row["passes"] for row in rows)


def title(setting):
    model, dtype, threads, mode = setting
    return f"{model}, {dtype}, {threads} thread{'s' * (threads > 1)}, {mode}"


def line(kind, rows):
    ways = {way: [row for row in rows if row["way"] == way] for way in WAYS}
    plain, ours = ways["generate"], ways["specds"]
    tokens = sum(len(row["text"]) for row in plain)
    by_clock, by_cpu = (tokens / sum(row[of] for row in plain) for of in ("wall_s", "cpu_s"))
    lookup, loop, found = (ratios(rows, way) for way in WAYS[1:])
    of_clock = mean(ratios(rows, "specds", "wall_s"))
    texts = {key(row): row["text"] for row in plain}
    same = sum(row["text"] == texts[key(row)] for row in ours)
    return (
        f"| {kind} | {by_clock:.1f} (CPU {by_cpu:.1f}) | {mean(lookup):.2f} | {mean(loop):.2f} "
        f"| **{mean(found):.2f}** ({of_clock:.2f}) | {min(found):.2f} to {max(found):.2f} "
        f"| {tokens_a_pass(ours):.2f} | {phases(ours)} | {same} of {len(ours)} |"
    )


def phases(rows):
    """The shares of time in the pass over the prompt, in those over drafts, and in all else."""
    prompt, passes = (mean(row["shares"][of] for row in rows) for of in ("prefill", "forward"))
    return f"{prompt:.0%}, {passes:.0%}, {1 - prompt - passes:.1%}"


def ratios(rows, way, clock="cpu_s"):
    """How many times the tokens a second of `generate` a way gives, by request."""
    per_second = {(key(row), row["way"]): len(row["text"]) / row[clock] for row in rows}
    return [
        speed / per_second[where, "generate"]
        for (where, name), speed in per_second.items()
        if name == way
    ]


def key(row):
    return row["kind"], row["number"]


def _grouped(rows):
    by_kind = defaultdict(list)
    for row in rows:
        by_kind[row["kind"]].append(row)
    return by_kind
