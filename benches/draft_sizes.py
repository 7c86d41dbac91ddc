"""Gain of automatic draft sizes on recorded answers, by the costs of a model's forward passes.

    make bench-sizes ARGS="--tokenizer llama --costs 1:40,9:108,32:383,512:5598 ANSWERS.jsonl ..."

A simulation: sessions and budget are those of the decoding loop, a draft takes its CPU time, and a
pass the time that `--costs` gives for its tokens, interpolated. No model runs, so nothing is
drafted from predictions. The best sizes know how much of each draft is right, and verify as many
nodes as save most time. With `--rival 1:49,512:6731`, the last columns have the prompts' share of
the time, and the speedup of whole requests over an engine of these costs.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import process_time

import numpy as np

from specds import FusedDrafter, Memory
from specds._core import DraftStats, Session, StepTimes, TokenTree
from specds.bench.transcripts import Transcript, read_files
from specds.drafters.session import EMPTY_TREE
from specds.generation.budget import MAX_NODES, AutoBudget
from specds.generation.native import NativeRunner
from specds.models.load import load_tokenizer
from specds.models.tokenization import vocab_size


class PassCosts:
    """Seconds of a pass by its number of tokens, in proportion to it above the largest number."""

    def __init__(self, known: dict[int, float]) -> None:
        self.known = sorted(known.items())

    @classmethod
    def parsed(cls, text: str) -> "PassCosts":
        pairs = (pair.split(":") for pair in text.split(","))
        return cls({int(size): float(ms) / 1e3 for size, ms in pairs})

    def __call__(self, num_tokens: int) -> float:
        factor = max(num_tokens / self.known[-1][0], 1)
        return factor * float(np.interp(num_tokens, *zip(*self.known, strict=True)))

    def of_prompts(self, transcripts: Sequence[Transcript]) -> float:
        """Return the seconds to read prompts, without what each shares with the request before."""
        seconds, before = 0.0, np.empty(0, np.uint32)
        for transcript in transcripts:
            prompt = transcript.prompt_ids
            shorter = min(len(prompt) - 1, len(before))
            same = np.append(prompt[:shorter] == before[:shorter], False).argmin()
            seconds += self(len(prompt) - int(same))
            before = np.concatenate([prompt, transcript.completion_ids])
        return seconds


@dataclass
class Sum:
    """Simulated seconds, and counts.

    Attributes:
        tokens: Those that the passes wrote.
        nodes: Drafted tokens that were verified.
        accepted: Those of them that were right.
    """

    seconds: float = 0.0
    passes: int = 0
    tokens: int = 0
    nodes: int = 0
    accepted: int = 0


Choose = Callable[[Session, int, Sequence[int], Sum], TokenTree]
"""Drafts: gets the session, the most depth, the true next tokens, and what was counted so far."""


def replay(
    transcripts: Sequence[Transcript],
    costs: PassCosts,
    drafter: FusedDrafter,
    choose_of: Callable[[], tuple[Choose, AutoBudget | None]],
) -> Sum:
    """Return the sum over all answers, whose requests share the drafter's request cache."""
    total = Sum()
    for transcript in transcripts:
        session = drafter.session(transcript.prompt_ids, group=transcript.group)
        choose, budget = choose_of()
        truth, place = transcript.completion_ids, 1  # the prompt's pass wrote the first token
        session.observe(truth[:1])
        learning_s = 0.0
        while place < len(truth):
            began = process_time()
            tree = choose(session, len(truth) - place - 1, truth[place : place + MAX_NODES], total)
            drafting_s = process_time() - began
            path = tree.follow(truth[place : place + len(tree)])
            emitted = truth[place : place + len(path) + 1]
            place += len(emitted)
            began = process_time()
            session.observe(emitted)
            learning_s = process_time() - began
            step_s = costs(1 + len(tree))
            if budget is not None:
                budget.record([emitted.tolist()], step_s, learning_s)
            total.seconds += step_s + (drafting_s + learning_s if budget is not None else 0.0)
            total.passes += 1
            total.tokens += len(emitted)
            total.nodes += len(tree)
            total.accepted += len(path)
        session.finish()
    return total


def automatic(transcripts: Sequence[Transcript], costs: PassCosts, size: int) -> Sum:
    """Return the sum with the sizes that the budget chooses."""
    times = StepTimes(NativeRunner.token_cost, costs.known)
    stats = DraftStats()

    def of_request() -> tuple[Choose, AutoBudget]:
        budget = AutoBudget(times, stats, size, clock=process_time)

        def choose(session: Session, depth: int, *_: object) -> TokenTree:
            return budget.draft([session], [depth])[0]

        return choose, budget

    return replay(transcripts, costs, FusedDrafter(memory=Memory(size)), of_request)


def best(transcripts: Sequence[Transcript], costs: PassCosts, size: int) -> Sum:
    """Return the sum with the best size of each draft, at the price of time so far."""

    def choose(session: Session, depth: int, truth: Sequence[int], total: Sum) -> TokenTree:
        tree = session.draft(MAX_NODES, depth) if depth > 0 else EMPTY_TREE
        price = total.seconds / total.tokens if total.tokens else costs(1)
        gains = [
            (1 + len(tree.limited(nodes).follow(truth[:nodes]))) * price - costs(1 + nodes)
            for nodes in range(len(tree) + 1)
        ]
        return tree.limited(int(np.argmax(gains)))

    drafter = FusedDrafter(memory=Memory(size))
    return replay(transcripts, costs, drafter, lambda: (choose, None))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, help="transcripts, as of `bench acceptance`")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--costs", required=True, type=PassCosts.parsed, metavar="TOKENS:MS,...")
    parser.add_argument(
        "--rival",
        type=PassCosts.parsed,
        metavar="TOKENS:MS,...",
        help="costs of an engine without drafts, to compare whole requests, prompts included",
    )
    parser.add_argument("--limit", type=int, default=30, help="answers of each file")
    given = parser.parse_args()
    tokenizer = load_tokenizer(given.tokenizer)
    size = vocab_size(tokenizer)
    more = " prompt | over the rival |" if given.rival else ""
    print("| answers | gain | tokens a pass | nodes a pass | rejected | best sizes: gain | "
          f"rejected | share of its gain |{more}")  # fmt: skip
    print("| --- |" + " ---: |" * (9 if given.rival else 7))
    for file in given.files:
        transcripts = read_files([file], tokenizer, given.limit)
        of, bound = (way(transcripts, given.costs, size) for way in (automatic, best))
        gains = [each.tokens * given.costs(1) / each.seconds for each in (of, bound)]
        rejected = [1 - each.accepted / max(each.nodes, 1) for each in (of, bound)]
        share = (gains[0] - 1) / max(gains[1] - 1, 1e-9)
        line = (f"| {file.stem} | {gains[0]:.2f} | {of.tokens / of.passes:.2f} | "
                f"{of.nodes / of.passes:.1f} | {rejected[0]:.0%} | {gains[1]:.2f} | "
                f"{rejected[1]:.0%} | {share:.0%} |")  # fmt: skip
        if given.rival:
            prompts = given.costs.of_prompts(transcripts)
            rival = given.rival.of_prompts(transcripts) + of.tokens * given.rival(1)
            whole = prompts + of.seconds
            line += f" {prompts / whole:.0%} | {rival / whole:.2f} |"
        print(line, flush=True)


if __name__ == "__main__":
    main()
