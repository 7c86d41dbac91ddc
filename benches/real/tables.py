"""Tables of the speeds of several ways to answer the same requests, by kind of request."""

from statistics import mean

SETTING = ("model", "dtype", "threads", "mode")
AS_ON_A_GPU = 0.03  # cost of a drafted token there, in passes
_HEAD = (
    "| kind | way | tokens/s | times | min to max | accepted/drafted | tokens per pass "
    f"| speed if a drafted token cost {AS_ON_A_GPU} of a pass | prompt, passes, rest | same text |"
)


def print_tables(rows):
    """Print a table for each setting; speeds and texts are compared with those of the first way."""
    for setting in dict.fromkeys(map(setting_of, rows)):
        found = [row for row in rows if setting_of(row) == setting]
        baseline = {_key(row): row for row in found if row["way"] == found[0]["way"]}
        print(f"\n{', '.join(setting)}\n\n{_HEAD}\n|{' --- |' * 10}")
        for kind in dict.fromkeys([*(row["kind"] for row in found), "all"]):
            for way in dict.fromkeys(row["way"] for row in found):
                own = [row for row in found if row["way"] == way and kind in (row["kind"], "all")]
                print(f"| {kind} | {way} | {line([(row, baseline[_key(row)]) for row in own])} |")


def setting_of(row):
    return tuple(str(row[name]) for name in SETTING if name in row)


def line(pairs):
    """Return the figures of rows, each with that of the baseline for the same request."""
    rows = [row for row, _ in pairs]
    seconds, tokens = sum(row["seconds"] for row in rows), sum(row["tokens"] for row in rows)
    times = [_speed(row) / _speed(other) for row, other in pairs if row["tokens"]]
    texts = [zip(row["texts"], other["texts"], strict=True) for row, other in pairs]
    same = [text == expected for of_row in texts for text, expected in of_row]
    drafting, shares = " | | ", ""
    if all("passes" in row for row in rows):
        names = ("accepted", "drafted", "passes")
        accepted, drafted, passes = (sum(row[name] for row in rows) for name in names)
        as_on_a_gpu = tokens / (passes + AS_ON_A_GPU * drafted)
        drafting = f"{accepted}/{drafted} | {tokens / passes:.2f} | {as_on_a_gpu:.2f}"
    if all("shares" in row for row in rows):
        prompt, passes = (mean(row["shares"][of] for row in rows) for of in ("prefill", "forward"))
        shares = f"{prompt:.0%}, {passes:.0%}, {1 - prompt - passes:.1%}"
    return (
        f"{tokens / seconds:.1f} | {mean(times):.2f} | {min(times):.2f} to {max(times):.2f} "
        f"| {drafting} | {shares} | {sum(same)} of {len(same)}"
    )


def _speed(row):
    return row["tokens"] / row["seconds"]


def _key(row):
    return row["kind"], row["number"]
