"""Tables of the speeds of several ways to answer the same requests, by kind of request."""

from statistics import mean

from real.measure import TRANSFORMERS, undrafted, without_datastore

SETTING = ("model", "threads", "instructions", "mode")
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


def print_summary(rows):
    """Print a table for each setting: tokens a CPU second of each way and kind, ratios, and texts.

    Ratios are means over kinds of the ratios of whole kinds. Texts are compared with those that the
    same precision of specds writes without drafts, and with those of transformers.
    """
    for setting in dict.fromkeys(map(setting_of, rows)):
        found = [row for row in rows if setting_of(row) == setting]
        kinds, ways = ([*dict.fromkeys(row[name] for row in found)] for name in ("kind", "way"))
        speeds = {way: {kind: _speed_of(found, way, kind) for kind in kinds} for way in ways}
        compared = [way for way in ("llama.cpp", TRANSFORMERS) if way in ways]
        over = "".join(f" over {way} |" for way in compared)
        head = f"| {' | '.join(kinds)} | mean |{over} same as without drafts | as transformers |"
        print(f"\n{', '.join(setting)}: tokens a CPU second, prompts included\n\n| {head}")
        print(f"|{' --- |' * (len(kinds) + len(compared) + 4)}")
        texts = {(row["way"], *_key(row)): row["texts"] for row in found}
        for way in ways:
            own, shown = speeds[way], [f"{speeds[way][kind]:.1f}" for kind in kinds]
            shown.append(f"{mean(own.values()):.1f}")
            for other in compared:
                ratios = [own[kind] / speeds[other][kind] for kind in kinds]
                shown.append(f"{mean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
            shown += [_same(texts, way, of) for of in (undrafted(way), TRANSFORMERS)]
            print(f"| {way} | {' | '.join(shown)} |")
        for way, other in ((way, without_datastore(way)) for way in ways):
            if way != other in speeds:
                ratios = [speeds[way][kind] / speeds[other][kind] for kind in kinds]
                shown = [f"{each:.3f}" for each in (*ratios, mean(ratios))]
                print(f"| {way} over {other} | {' | '.join(shown)} |{' |' * (len(compared) + 2)}")
        ties = [row["tie"] for row in found if "tie" in row]
        if ties:
            print(
                f"\nWhere texts part from transformers', logits differ by at most {max(ties):.2g}."
            )


def _speed_of(rows, way, kind):
    own = [row for row in rows if row["way"] == way and row["kind"] == kind]
    return sum(row["tokens"] for row in own) / sum(row["seconds"] for row in own)


def _same(texts, way, other):
    pairs = [(text, texts.get((other, *key))) for (of, *key), text in texts.items() if of == way]
    pairs = [(text, expected) for text, expected in pairs if expected is not None]
    return f"{sum(text == expected for text, expected in pairs)} of {len(pairs)}"


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
