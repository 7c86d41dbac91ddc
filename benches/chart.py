"""Draws the charts of the README and writes tables of acceptance, from measured rows.

The rows lie in docs/figures: `replay.json` as `specds bench replay --json` prints them, less what
is not shown, and `real.json` as `make bench-real` does. `--keep` takes newer rows of a replay:

    specds bench replay --json ... > replay.json
    python benches/chart.py --keep replay.json --conditions "2 CPU cores, 23 November 2026"
"""

import argparse
import json
import re
from collections.abc import Iterable
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib.pyplot as plt

DOCS = Path(__file__).parent.parent / "docs"
FIGURES = DOCS / "figures"
PAGES = [DOCS / "acceptance.md", DOCS / "notes" / "papers.md", DOCS.parent / "README.md"]

Row = dict[str, Any]

# What is kept of a row of a replay: first what tells it from all others, then its figures.
KEYS = ("transcripts", "drafter", "max_nodes")
VALUES = ("datastore_tokens", "num_requests", "mean_acceptance_length", "interval")

SETS = {
    "mtbench-vicuna-7b": "MT-Bench\nVicuna-7B",
    "alpaca-vicuna-7b": "AlpacaEval\nVicuna-7B",
    "gsm8k-gpt3-175b": "GSM8K\nGPT-3 175B",
    "humaneval-codegen-16b": "HumanEval\nCodeGen-16B",
    "specbench-vicuna-7b": "Spec-Bench\nVicuna-7B",
    "airline-gpt-4o": "agent\nGPT-4o",
    "rollouts-codegen-16b": "rollouts\nCodeGen-16B",
    "japanese-llama-3.1-8b": "Japanese\nLlama-3.1-8B",
}
# In the head of a table: `dev` where drafters were developed on these answers, T where sampled.
NOTES = {
    "mtbench-vicuna-7b": " (dev)",
    "alpaca-vicuna-7b": " (dev)",
    "gsm8k-gpt3-175b": " (dev)",
    "humaneval-codegen-16b": ", T = 0.8 (dev)",
    "rollouts-codegen-16b": ", T = 0.8",
}
NO_DATASTORE, NO_MEMORY = "fused without datastore", "fused without memory"
DRAFTERS = {
    "fused": "`fused`",
    NO_MEMORY: "`fused`, each request anew",
    NO_DATASTORE: "`fused` without a datastore",
    "fused:effort=low": "`fused:effort=low`",
    "aded": "`aded`",
    "aded:search=greedy": "`aded:search=greedy`",
    "aded:order=2": "`aded:order=2`",
    "aded:order=4": "`aded:order=4`",
    "rest:max_match=2": "`rest:max_match=2`, its best match length",
    "rest": "`rest`, as in the paper",
    "n-grammys:strategy=context": "`n-grammys:strategy=context`",
    "prompt-lookup": "`prompt-lookup`",
    "draftretriever": "ADED's package, draftretriever 0.1.1",
    "sglang-ngram-corpus": "SGLang's n-grams 0.5.23, prompt and 1 M tokens of the corpus in them",
    "sglang-ngram-prompt": "the same with the prompt alone",
    "sglang-ngram": "the same as its worker asks, without the prompt",
    "arctic-suffix-corpus": "Arctic's suffix tree, 1 M tokens of the corpus in it",
    "arctic-suffix-tree": "Arctic's suffix tree, arctic-inference 0.3.0",
    "arctic-suffix": "the same, its default chain",
    "transformers-prompt-lookup": "prompt lookup of transformers",
}
# What the README shows; the page of all of them has the rest.
FIRST = ["fused", NO_DATASTORE, "sglang-ngram-corpus", "rest", "transformers-prompt-lookup"]
FIRST_SETS = ["mtbench-vicuna-7b", "humaneval-codegen-16b", "specbench-vicuna-7b", "airline-gpt-4o"]
# What a drafter has: its corpus, and whether it remembers earlier requests.
HAS = {
    "fused": ("60 M tokens", "yes"),
    NO_MEMORY: ("60 M tokens", "no"),
    NO_DATASTORE: ("none", "yes"),
    "rest:max_match=2": ("60 M tokens", "no"),
    "rest": ("60 M tokens", "no"),
    "draftretriever": ("60 M tokens", "yes"),
    "sglang-ngram-corpus": ("1 M tokens", "yes"),
    "sglang-ngram-prompt": ("none", "yes"),
    "sglang-ngram": ("none", "yes"),
    "arctic-suffix-corpus": ("1 M tokens", "yes"),
    "arctic-suffix-tree": ("none", "yes"),
    "transformers-prompt-lookup": ("none", "no"),
}
DRAWN = {
    "fused": "specds",
    "sglang-ngram-corpus": "SGLang's n-grams",
    "arctic-suffix-tree": "Arctic's suffix tree",
    "rest": "REST (in specds)",
    "transformers-prompt-lookup": "prompt lookup",
}
REAL = {"model": "smollm2", "dtype": "float32", "threads": 1, "mode": "greedy"}
KINDS = ["agent", "edit", "turns", "completion", "json", "summary", "chat", "code"]
WAYS = {"specds": 0, "prompt lookup": 1}
BUDGET = 64

THEMES = {
    "light": {
        "text": "#1f2328",
        "faint": "#656d76",
        "line": "#d0d7de",
        "bars": ["#6d3fd1", "#8a93a0", "#a7afba", "#c3c9d1", "#dde1e6"],
    },
    "dark": {
        "text": "#e6edf3",
        "faint": "#8d96a0",
        "line": "#30363d",
        "bars": ["#a78bfa", "#8b949e", "#717982", "#5a626b", "#484f58"],
    },
}


def rows_of(kind: str) -> list[Row]:
    """The committed rows of a kind."""
    rows: list[Row] = json.loads((FIGURES / f"{kind}.json").read_text())["rows"]
    return rows


def keep(path: Path, conditions: str) -> None:
    """Takes the rows of a benchmark's output; older ones of the same kind go."""
    document = json.loads(path.read_text())
    found = [
        row for row in document["rows"] if row["status"] == "ok" and row["transcripts"] != "all"
    ]
    rows = {tuple(row[key] for key in KEYS): row for row in rows_of("replay")}
    for row in found:
        if row["drafter"] == "fused" and row["datastore"] is None:
            row["drafter"] = NO_DATASTORE
        elif row["drafter"] == "fused" and not document["warm_memory"]:
            row["drafter"] = NO_MEMORY
        kept = {key: row[key] for key in (*KEYS, *VALUES)}
        kept["interval"] = [round(end, 3) for end in row["interval"] or []]
        rows[tuple(row[key] for key in KEYS)] = {**kept, "conditions": conditions}
    lines = ",\n".join(json.dumps(row) for row in rows.values())
    (FIGURES / "replay.json").write_text(f'{{"rows": [\n{lines}\n]}}\n')


def acceptance(rows: list[Row]) -> dict[tuple[str, str, int], float]:
    """Mean acceptance lengths by drafter, set and number of nodes."""
    return {
        (row["drafter"], row["transcripts"], row["max_nodes"]): row["mean_acceptance_length"]
        for row in rows
    }


def table(drafters: list[str], only: int | None = None, sets: Iterable[str] = SETS) -> str:
    """Drafters on some sets, as Markdown; at one number of nodes with what each drafter has."""
    lengths = acceptance(rows_of("replay"))
    names = [SETS[group].replace("\n", ", ") + NOTES.get(group, "") for group in sets]
    about = ["corpus", "remembers requests"] if only else ["nodes"]
    rule = ["---"] * (1 + len(about)) if only else ["---", "---:"]
    lines = [["drafter", *about, *names], [*rule, *["---:"] * len(names)]]
    for drafter in drafters:
        for max_nodes in [only] if only else sorted({b for d, _, b in lengths if d == drafter}):
            cells = [lengths.get((drafter, name, max_nodes)) for name in sets]
            shown = ["" if cell is None else f"{cell:.2f}" for cell in cells]
            has = HAS[drafter] if only else [str(max_nodes)]
            lines.append([DRAFTERS[drafter], *has, *shown])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def with_tables(page: str) -> str:
    """A page with a table between each pair of its marks, of the drafters that the mark names.

    `<!-- acceptance of rest,aded -->` is a table of all sizes, `all` is all drafters, and
    `<!-- acceptance at 64 -->` one of those that differ in what they have, and `first` instead of
    `at` the few that the README shows.
    """

    def filled(found: re.Match[str]) -> str:
        if found[2] == "first":
            shown = table(FIRST, int(found[3]), FIRST_SETS)
        elif found[2] == "at":
            shown = table([*HAS], int(found[3]))
        else:
            shown = table([*DRAFTERS] if found[3] == "all" else found[3].split(","))
        return f"{found[1]}\n\n{shown}\n\n{found[4]}"

    mark = r"(<!-- acceptance (of|at|first) (\S+) -->).*?(<!-- end -->)"
    return re.sub(mark, filled, page, flags=re.DOTALL)


def style(theme: dict[str, Any]) -> dict[str, Any]:
    """Settings of matplotlib: text stays text, and a chart is the same file in every run."""
    return {
        "font.family": "sans-serif",
        "font.sans-serif": ["Inter", "Helvetica Neue", "Arial", "DejaVu Sans"],
        "font.size": 9,
        "svg.fonttype": "none",
        "svg.hashsalt": "specds",
        **{f"{what}.color": theme["text"] for what in ("text", "xtick", "ytick")},
        **{f"axes.spines.{side}": False for side in ("top", "right", "left")},
        "axes.edgecolor": theme["line"],
        "xtick.major.size": 0,
        "ytick.major.size": 0,
    }


def title(axes: Any, theme: dict[str, Any], left: int, text: str, below: str) -> None:
    """A heading of two lines above a panel; it begins `left` points beside the left edge."""
    corner = ((0, 1), (left, 30), "axes fraction", "offset points")
    axes.annotate(text, *corner, fontsize=11, fontweight="bold")
    corner = ((0, 1), (left, 17), "axes fraction", "offset points")
    axes.annotate(below, *corner, fontsize=8.5, color=theme["faint"])


def font(theme: dict[str, Any], is_ours: bool, ours: float, others: float) -> dict[str, Any]:
    """How a figure beside its bar is written: ours bold, in its colour and its size."""
    if is_ours:
        return {"fontsize": ours, "fontweight": "bold", "color": theme["bars"][0]}
    return {"fontsize": others, "fontweight": "normal", "color": theme["faint"]}


def draw_acceptance(axes: Any, theme: dict[str, Any]) -> None:
    """Tokens per forward: a group of bars for each set of answers."""
    lengths = acceptance(rows_of("replay"))
    width = 0.84 / len(DRAWN)
    for place, (drafter, name) in enumerate(DRAWN.items()):
        heights = [lengths[drafter, transcripts, BUDGET] for transcripts in FIRST_SETS]
        where = [group - 0.42 + (place + 0.5) * width for group in range(len(FIRST_SETS))]
        axes.bar(where, heights, width * 0.9, color=theme["bars"][place], label=name, zorder=2)
        for x, height in zip(where, heights, strict=True):
            is_ours = place == 0
            shown = f"{height:.2f}" if is_ours else f"{height:.1f}"
            axes.text(x, height + 0.06, shown, ha="center", **font(theme, is_ours, 8.5, 7))
    axes.axhline(1, color=theme["faint"], linewidth=0.8, linestyle=(0, (3, 3)), zorder=3)
    axes.set_xticks(range(len(FIRST_SETS)), [SETS[name] for name in FIRST_SETS])
    axes.set_yticks([])
    axes.set_ylim(0, 6.1)
    axes.set_xlim(-0.5, len(FIRST_SETS) - 0.5)
    below = f"recorded answers, {BUDGET} nodes a draft; dashed: plain decoding"
    title(axes, theme, 0, "Tokens per forward pass", below)
    shape = {"handlelength": 0.8, "handleheight": 0.8, "handletextpad": 0.4, "columnspacing": 1.0}
    place = {"loc": "lower left", "bbox_to_anchor": (-0.01, 0.965), "borderpad": 0}
    axes.legend(ncols=len(DRAWN), frameon=False, fontsize=7.5, **place, **shape)


def draw_speed(axes: Any, theme: dict[str, Any]) -> None:
    """Speed over `model.generate`: two bars for each kind of request, with the mean of each."""
    rows = [row for row in rows_of("real") if all(row[key] == REAL[key] for key in REAL)]
    speeds = {row["kind"]: row["over_generate"] for row in rows}
    for number, kind in enumerate(KINDS):
        for way, place in WAYS.items():
            height, x = mean(speeds[kind][way]), number - 0.2 + 0.4 * place
            axes.bar(x, height, 0.36, color=theme["bars"][place], zorder=2)
            axes.text(
                x, height + 0.05, f"{height:.1f}", ha="center", **font(theme, not place, 8, 7)
            )
    axes.axhline(1, color=theme["faint"], linewidth=0.8, linestyle=(0, (3, 3)), zorder=3)
    axes.set_xticks(range(len(KINDS)), KINDS, rotation=30, ha="right", rotation_mode="anchor")
    axes.set_yticks([])
    axes.set_ylim(0, 3.1)
    below = "SmolLM2-135M, CPU; grey: prompt lookup; dashed: plain"
    title(axes, theme, 0, "Speed over model.generate", below)


def draw(name: str, theme: dict[str, Any]) -> None:
    """Draws both panels into one file."""
    plt.switch_backend("svg")
    with plt.rc_context(style(theme)):
        figure, (left, right) = plt.subplots(
            1, 2, figsize=(10.4, 3.5), width_ratios=(1.75, 1), layout="constrained"
        )
        figure.get_layout_engine().set(wspace=0.06)
        draw_acceptance(left, theme)
        draw_speed(right, theme)
        path = DOCS / "assets" / f"figures-{name}.svg"
        figure.savefig(path, transparent=True, pad_inches=0.08, metadata={"Date": None})
        plt.close(figure)
    print(path.relative_to(DOCS.parent))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--keep", nargs="+", type=Path, default=[], metavar="FILE")
    parser.add_argument("--conditions", default="", help="when and where --keep was measured")
    arguments = parser.parse_args()
    for path in arguments.keep:
        keep(path, arguments.conditions)
    for page in PAGES:
        page.write_text(with_tables(page.read_text()))
    for name, theme in THEMES.items():
        draw(name, theme)


if __name__ == "__main__":
    main()
