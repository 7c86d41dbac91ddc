"""Benchmark of a trained head with retrieval in one tree, by replay: `make bench-head`.

Reads files of SpecDecode-Bench's simulator (`data/llama3.1-8B/combined_*.jsonl`): answers of
Llama-3.1-8B, and for each of their tokens how many tokens of EAGLE's chain were right. The wrong
ones are not recorded. Here they are what followed the last right token before in the text, so that
retrieval finds them likely too.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

from specds import FusedDrafter, Memory, TokenTree
from specds.bench.acceptance.measure import SuggestedDrafter

_MOST_RIGHT = 16
"""The most tokens of a chain; one in a thousand chains has more that are right."""


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="bench-head", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--max-nodes", default=[8, 16, 32], type=int, nargs="+", metavar="N")
    parser.add_argument("--limit", type=int, help="requests of each file")
    given = parser.parse_args(arguments)
    print("| answers | nodes | head alone | retrieval alone | both | over head | over the better |")
    print(f"| --- |{' ---: |' * 6}")
    for path in given.files:
        answers = [*read(path)][: given.limit]
        about = f"{path.stem.removeprefix('combined_')}, {len(answers)}"
        for num_nodes in given.max_nodes:
            head, retrieval, both = ways(answers, num_nodes)
            cells = f"{head:.2f} | {retrieval:.2f} | {both:.2f} | {both / head:.2f}"
            over = f"{both / max(head, retrieval):.2f}"
            print(f"| {about} | {num_nodes} | {cells} | {over} |", flush=True)


@dataclass
class Answer:
    """An answer with the drafts of a head.

    Attributes:
        token_ids: The tokens of the prompt and of the answer.
        start: Where the answer begins.
        num_right: How many tokens of the head are right at each token of the answer.
    """

    token_ids: list[int]
    start: int
    num_right: list[int]

    def __post_init__(self):
        # For each token, where another token followed the same one before; -1 for nowhere.
        self._others, places = [-1], {}
        for place, (before, token) in enumerate(
            zip(self.token_ids, self.token_ids[1:], strict=False), 1
        ):
            known = places.setdefault(before, {})
            self._others.append(max((at for of, at in known.items() if of != token), default=-1))
            known[token] = place

    def chain(self, place, length):
        """Return the tokens that the head drafts for a place."""
        right = min(self.num_right[place - self.start], length, len(self.token_ids) - place)
        chain, wrong = self.token_ids[place : place + right], place + right
        if right < length and wrong < len(self.token_ids):
            other = self._others[wrong]
            end = min(other + length - right, place)
            chain += self.token_ids[other:end] if other >= 0 else [0]
        return chain


def read(path):
    """Yield the answers of a file whose recorded text is that of the head."""
    for line in path.read_text().splitlines():
        row = json.loads(line)
        prompt, answer = row["prompt_token_ids"], row["generated_token_ids"]
        lengths = row["acc_eagle"]["acc_len"]
        # In the other rows the head wrote another text.
        if len(lengths) == len(answer):
            yield Answer(prompt + answer, len(prompt), [length - 1 for length in lengths])


def ways(answers, num_nodes):
    """Return tokens a pass of the head, of retrieval and of both."""
    vocab_size = 1 + max(max(answer.token_ids) for answer in answers)
    fused = [FusedDrafter(memory=Memory(vocab_size)) for _ in range(2)]
    drafters = (SuggestedDrafter(), True), (fused[0], False), (fused[1], True)
    return [tokens_a_pass(drafter, answers, num_nodes, has_head) for drafter, has_head in drafters]


def tokens_a_pass(drafter, answers, num_nodes, has_head):
    num_tokens = num_passes = 0
    for answer in answers:
        truth, place = answer.token_ids, answer.start
        session = drafter.session(truth[:place])
        while place < len(truth):
            most = len(truth) - place - 1
            if most > 0 and has_head:
                session.suggest(answer.chain(place, min(num_nodes, _MOST_RIGHT)))
            tree = session.draft(num_nodes, most) if most > 0 else TokenTree.of_paths([])
            # The head alone drafts its whole chain.
            path = tree.limited(num_nodes, most).follow(truth[place : place + len(tree)])
            emitted = truth[place : place + len(path) + 1]
            session.observe(emitted)
            place += len(emitted)
            num_passes += 1
        num_tokens += len(truth) - answer.start
        session.finish()
    return num_tokens / num_passes


if __name__ == "__main__":
    main()
