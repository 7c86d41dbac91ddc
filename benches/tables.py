"""Tables of acceptance lengths in the documentation, written from measured rows.

The rows are in `docs/figures/replay.json`. `--keep` adds newer ones:

    specds bench acceptance --json ... > rows.json
    python benches/tables.py --keep rows.json --conditions "2 CPU cores, 23 November 2026"
"""

import argparse
import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"
ROWS = DOCS / "figures" / "replay.json"
PAGES = [DOCS / "results" / "acceptance.md", DOCS / "results" / "papers.md"]

FigureRow = dict[str, Any]

# Fields of a row that are kept: its key, then its figures.
KEYS = ("transcripts", "drafter", "max_nodes")
VALUES = ("datastore_tokens", "num_requests", "mean_acceptance_length", "interval")

# `dev` marks sets used to develop drafters; T is the temperature.
SETS = {
    "mtbench-vicuna-7b": "MT-Bench, Vicuna-7B (dev)",
    "alpaca-vicuna-7b": "AlpacaEval, Vicuna-7B (dev)",
    "gsm8k-gpt3-175b": "GSM8K, GPT-3 175B (dev)",
    "humaneval-codegen-16b": "HumanEval, CodeGen-16B, T = 0.8 (dev)",
    "specbench-vicuna-7b": "Spec-Bench, Vicuna-7B",
    "airline-gpt-4o": "agent, GPT-4o",
    "rollouts-codegen-16b": "rollouts, CodeGen-16B, T = 0.8",
    "japanese-llama-3.1-8b": "Japanese, Llama-3.1-8B",
}
NO_DATASTORE, NO_MEMORY = "fused without datastore", "fused without memory"
DRAFTERS = {
    "fused": "`fused`",
    NO_MEMORY: "`fused`, a new drafter per request",
    NO_DATASTORE: "`fused` without a datastore",
    "fused:effort=low": "`fused:effort=low`",
    "aded": "`aded`",
    "aded:search=greedy": "`aded:search=greedy`",
    "aded:order=2": "`aded:order=2`",
    "aded:order=4": "`aded:order=4`",
    "rest:max_match=2": "`rest:max_match=2`",
    "rest": "`rest`",
    "n-grammys:strategy=context": "`n-grammys:strategy=context`",
    "prompt-lookup": "`prompt-lookup`",
    "draftretriever": "ADED's package, draftretriever 0.1.1",
    "sglang-ngram-corpus": "SGLang 0.5.23, n-grams of the prompt and the corpus",
    "sglang-ngram-prompt": "SGLang, n-grams of the prompt",
    "sglang-ngram": "SGLang, as its worker queries (no prompt)",
    "arctic-suffix-corpus": "Arctic's suffix tree with the corpus",
    "arctic-suffix-tree": "Arctic's suffix tree, arctic-inference 0.3.0",
    "arctic-suffix": "Arctic's default chain",
    "transformers-prompt-lookup": "prompt lookup of transformers",
}
# Inputs of a drafter: its corpus, and whether it remembers earlier requests.
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


def committed_rows() -> list[FigureRow]:
    rows: list[FigureRow] = json.loads(ROWS.read_text())["rows"]
    return rows


def keep(path: Path, conditions: str) -> None:
    """Add the rows of a benchmark's output, and replace older rows of the same key."""
    document = json.loads(path.read_text())
    found = [
        row for row in document["rows"] if row["status"] == "ok" and row["transcripts"] != "all"
    ]
    rows = {tuple(row[key] for key in KEYS): row for row in committed_rows()}
    for row in found:
        if row["drafter"] == "fused" and row["datastore"] is None:
            row["drafter"] = NO_DATASTORE
        elif row["drafter"] == "fused" and not document["warm_memory"]:
            row["drafter"] = NO_MEMORY
        kept = {key: row[key] for key in (*KEYS, *VALUES)}
        kept["interval"] = [round(end, 3) for end in row["interval"] or []]
        rows[tuple(row[key] for key in KEYS)] = {**kept, "conditions": conditions}
    lines = ",\n".join(json.dumps(row) for row in rows.values())
    ROWS.write_text(f'{{"rows": [\n{lines}\n]}}\n')


def table(drafters: list[str], only: int | None = None) -> str:
    """Return a Markdown table of drafters on all sets, at all numbers of nodes or only one."""
    lengths = {
        (row["drafter"], row["transcripts"], row["max_nodes"]): row["mean_acceptance_length"]
        for row in committed_rows()
    }
    about = ["corpus", "earlier requests"] if only else ["nodes"]
    rule = ["---"] * (1 + len(about)) if only else ["---", "---:"]
    lines = [["drafter", *about, *SETS.values()], [*rule, *["---:"] * len(SETS)]]
    for drafter in drafters:
        for max_nodes in [only] if only else sorted({b for d, _, b in lengths if d == drafter}):
            cells = [lengths.get((drafter, name, max_nodes)) for name in SETS]
            shown = ["" if cell is None else f"{cell:.2f}" for cell in cells]
            has = HAS[drafter] if only else [str(max_nodes)]
            lines.append([DRAFTERS[drafter], *has, *shown])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def with_tables(page: str) -> str:
    """Return a page with its tables of acceptance replaced, each between a pair of marks.

    `<!-- acceptance of rest,aded -->` selects drafters, or `all`, at all numbers of nodes.
    `<!-- acceptance at 64 -->` selects all drafters at one number of nodes, with their inputs.
    """

    def filled(found: re.Match[str]) -> str:
        if found[2] == "at":
            shown = table([*HAS], int(found[3]))
        else:
            shown = table([*DRAFTERS] if found[3] == "all" else found[3].split(","))
        return f"{found[1]}\n\n{shown}\n\n{found[4]}"

    mark = r"(<!-- acceptance (of|at) (\S+) -->).*?(<!-- end -->)"
    return re.sub(mark, filled, page, flags=re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--keep", nargs="+", type=Path, default=[], metavar="FILE")
    parser.add_argument("--conditions", default="", help="when and where --keep was measured")
    arguments = parser.parse_args()
    for path in arguments.keep:
        keep(path, arguments.conditions)
    for page in PAGES:
        page.write_text(with_tables(page.read_text()))


if __name__ == "__main__":
    main()
