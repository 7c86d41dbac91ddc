"""One figure of each paper as a table: `make bench-papers ARGS="rest-match --transcripts ..."`.

Those of REST and ADED replay recorded answers beside a datastore; those of N-Grammys and HSDDW take
what the demo's model writes. The figures are the same on every machine.
"""

from argparse import ArgumentParser, Namespace
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from specds import Datastore, RestDrafter
from specds.bench.replay.measure import follow
from specds.bench.transcripts import Transcript, read_files
from specds.demo import prompts
from specds.drafters import (
    AdedConfig,
    AdedDrafter,
    Drafter,
    NGrammysConfig,
    NGrammysDrafter,
    RestConfig,
    Trigrams,
)
from specds.hierarchy import HierarchyConfig, HierarchyDrafter
from specds.hierarchy.config import Ablation
from specds.loading import load_encoder, load_model

Row = dict[str, str]
"""A cell by its column; the first names the row."""

# A pass of a level in plain ones of the target, as HSDDW's table 4 implies for 70B, 7B and 68M
# where verifying costs what a plain pass does: K = 10 is 9.9 draft passes, so 2.40 = 1 / (0.1442 (1
# + 9.9 c)) gives c of the 7B, and 1.69 with 0.4930 that of the 68M.
PASS_COSTS = {"small": 0.19, "tiny": 0.02}


def recorded(given: Namespace) -> tuple[Datastore, list[Transcript]]:
    if not given.transcripts or not given.datastore:
        raise SystemExit("this figure needs --transcripts and --datastore")
    datastore = Datastore(given.datastore)
    tokenizer = load_encoder(given.tokenizer or datastore.tokenizer_name)
    return datastore, read_files(given.transcripts, tokenizer)


@cache
def written(num_prompts: int, new_tokens: int) -> list[Transcript]:
    """What the demo's model writes to held-out prompts, greedy."""
    model, tokenizer = load_model("demo", device="cpu")
    found = []
    for prompt in prompts(num_prompts):
        ids = tokenizer(prompt.text, return_tensors="pt")["input_ids"]
        text = model.generate(ids, do_sample=False, max_new_tokens=new_tokens)[0, ids.shape[1] :]
        found.append(Transcript("demo", ids[0].numpy(), text.numpy()))
    return found


def lengths(drafter: Drafter, answers: Sequence[Transcript], max_nodes: int) -> Row:
    """Tokens per forward, by set of answers."""
    num_tokens, forwards = defaultdict[str, int](int), defaultdict[str, int](int)
    for answer in answers:
        for each in follow(drafter.session(answer.prompt_ids), answer, max_nodes):
            num_tokens[answer.source] += len(each.step.token_ids)
            forwards[answer.source] += 1
    return {name: f"{num_tokens[name] / count:.2f}" for name, count in forwards.items()}


def rest_match(given: Namespace) -> Iterator[Row]:
    """REST, figure 3: the longest suffix that is looked up."""
    datastore, answers = recorded(given)
    for longest in (1, 2, 3, 4, 6, 8, 12, 16):
        drafter = RestDrafter(datastore, RestConfig(max_match=longest))
        yield {"n_max": str(longest), **lengths(drafter, answers, 64)}


def aded_adaptive(given: Namespace) -> Iterator[Row]:
    """ADED, figure 4a: what the matrix learns from the text."""
    datastore, answers = recorded(given)
    trigrams = Trigrams.build(datastore)
    for name, config in {
        "adaptive": AdedConfig(),
        "not adaptive": AdedConfig(adaptive=False),
        "adaptive across requests": AdedConfig(across_requests=True),
    }.items():
        drafter = AdedDrafter(trigrams, config)
        yield {"matrix": name, **lengths(drafter, answers, drafter.max_nodes)}


ROWS, LENGTHS = (1, 5, 10, 20, 25), (2, 4, 6, 8, 10, 12, 14)


def n_grammys_grid(given: Namespace) -> Iterator[Row]:
    """N-Grammys, figure 5: tokens a call by rows and their length."""
    model, _ = load_model("demo", device="cpu")
    answers = written(given.prompts, given.new_tokens)
    for k in ROWS:
        cells = {}
        for w in LENGTHS:
            drafter = NGrammysDrafter(model, replace(NGrammysConfig(), k=k, w=w))
            cells[f"w = {w}"] = lengths(drafter, answers, drafter.max_nodes)["demo"]
        yield {"k": str(k), **cells}


def hsddw_windows(given: Namespace) -> Iterator[Row]:
    """HSDDW, figure 7: speed by the window K, at the paper's costs of passes."""
    both = ("tiny", "small")
    ways: Mapping[str, tuple[Sequence[str], Ablation]] = {
        "speculative decoding": (("small",), "sd"),
        "+ self-verify": (("small",), "self"),
        "+ pre- and self-verify": (both, "pre-self"),
        "HSDDW": (both, "full"),
    }
    answers = written(given.prompts, given.new_tokens)
    for label, (names, row) in ways.items():
        speeds = {f"K = {k}": speed_up(names, row, answers, k) for k in (4, 6, 8, 10)}
        cells = {name: f"{speed:.2f}x" for name, speed in speeds.items()}
        most, least = max(speeds.values()), min(speeds.values())
        yield {"": label, **cells, "most over least": f"{most / least:.2f}"}


@torch.inference_mode()
def speed_up(
    names: Sequence[str], row: Ablation, answers: Sequence[Transcript], window: int
) -> float:
    """Tokens over the cost of all passes, in plain ones of the target."""
    levels = {name: load_model(f"demo-{name}", device="cpu")[0] for name in names}
    config = replace(HierarchyConfig.ablation(row), window=window)
    drafter, num_tokens, cost = HierarchyDrafter(levels, config), 0, 0.0
    for answer in answers:
        session = drafter.session(answer.prompt_ids)
        for each in follow(session, answer, config.max_nodes):
            num_tokens += len(each.step.path) + 1
            cost += 1
        passes = session.level_stats.items()
        cost += sum(level.num_forwards * PASS_COSTS[name] for name, level in passes)
    return num_tokens / cost


PARTS = {
    "rest-match": rest_match,
    "aded-adaptive": aded_adaptive,
    "n-grammys-grid": n_grammys_grid,
    "hsddw-windows": hsddw_windows,
}


def markdown(rows: Sequence[Row]) -> str:
    """Rows as a table."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)]]
    lines += [[row.get(name, "") for name in columns] for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="+", choices=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--transcripts", nargs="+", type=Path, default=[])
    parser.add_argument("--datastore", type=Path)
    parser.add_argument("--tokenizer", help="of the transcripts; by default the datastore's")
    parser.add_argument("--prompts", type=int, default=24, help="that the demo's model completes")
    parser.add_argument("--new-tokens", type=int, default=128)
    given = parser.parse_args(arguments)
    for part in given.parts:
        title = (PARTS[part].__doc__ or "").rstrip(".")
        print(f"\n**{title}** (`{part}`)\n\n{markdown([*PARTS[part](given)])}", flush=True)


if __name__ == "__main__":
    main()
