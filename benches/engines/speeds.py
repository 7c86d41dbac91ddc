"""Speeds of ways to answer the same requests: options and table of the engines' benchmarks."""

import argparse
import json
from collections import defaultdict
from statistics import mean

from real.kinds import every_kind

AS_ON_A_GPU = 0.03  # cost of a drafted token there, in passes
_HEAD = (
    "| kind | way | tokens a CPU second | times | accepted | tokens a step "
    f"| speed if a drafted token cost {AS_ON_A_GPU} of a pass | same texts |"
)


def parser(description, ways, kinds, limit):
    parser = argparse.ArgumentParser(description=description)
    several = {"nargs": "+", "metavar": "NAME"}
    parser.add_argument("--kinds", default=kinds, choices=every_kind(), **several)
    parser.add_argument("--ways", default=[*ways], choices=[*ways], **several)
    parser.add_argument("--limit", default=limit, type=int, help="requests of each kind")
    parser.add_argument("--new-tokens", default=64, type=int, metavar="N")
    more = "more of specds' configuration, as JSON"
    parser.add_argument("--options", default={}, type=json.loads, help=more)
    return parser


def print_table(rows):
    """Print a line for each kind and way; texts and speeds are compared with the first way's."""
    first = {(row["kind"], row["number"]): row for row in rows if row["way"] == rows[0]["way"]}
    cells, times = defaultdict(list), defaultdict(list)
    for row in rows:
        cells[row["kind"], row["way"]].append((row, first[row["kind"], row["number"]]))
    print(f"{_HEAD}\n| --- | --- |{' ---: |' * 6}")
    for (kind, way), pairs in cells.items():
        own, baseline = zip(*pairs, strict=True)
        tokens, drafted, accepted = (total(own, of) for of in ("tokens", "drafted", "accepted"))
        times[way].append(speed(own) / speed(baseline))
        steps = tokens - accepted
        texts = [zip(row["texts"], other["texts"], strict=True) for row, other in pairs]
        same = [text == expected for of_row in texts for text, expected in of_row]
        print(
            f"| {kind} | {way} | {speed(own):.1f} | {times[way][-1]:.2f} | {accepted}/{drafted} "
            f"| {tokens / steps:.2f} | {tokens / (steps + AS_ON_A_GPU * drafted):.2f} "
            f"| {sum(same)} of {len(same)} |"
        )
    for way, of_kinds in times.items():
        print(f"| mean | {way} | | {mean(of_kinds):.2f} | | | | |")


def speed(rows):
    return total(rows, "tokens") / total(rows, "cpu_s")


def total(rows, name):
    return sum(row[name] for row in rows)
