"""How many tokens of recorded answers are drafted right: replayed, with no model run."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from index.published_rest import CHOICES, SuffixArray, retrieve, select
from index.tokens import load_transcripts

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from index.published_rest import NodePath
    from index.tokens import Transcript
    from specds import RestDrafter
    from specds._core import TokenTree
    from specds.drafters import Session

    Step = Callable[[np.ndarray, int], tuple[int, int]]
    """Drafts after the first `int` tokens: how many next ones are right, and the draft's size."""


@dataclass
class Tally:
    """What came of the drafts of a replay."""

    num_drafts: int = 0
    num_accepted: int = 0
    num_nodes: int = 0

    def __iadd__(self, other: Tally) -> Self:
        self.num_drafts += other.num_drafts
        self.num_accepted += other.num_accepted
        self.num_nodes += other.num_nodes
        return self

    @property
    def accepted(self) -> float:
        """Accepted tokens a draft; the model's own token after them is not counted."""
        return self.num_accepted / max(self.num_drafts, 1)

    @property
    def nodes(self) -> float:
        return self.num_nodes / max(self.num_drafts, 1)

    def to_dict(self) -> dict[str, Any]:
        return {
            "num_drafts": self.num_drafts,
            "num_accepted": self.num_accepted,
            "mean_acceptance_length": 1 + self.accepted,
            "nodes_per_draft": self.nodes,
        }


def num_right(tree: TokenTree, truth: np.ndarray) -> int:
    """The length of the longest path of a tree that the recorded tokens follow."""
    token_ids, parents = tree.token_ids.tolist(), tree.parents.tolist()
    # A child comes after its parent, so one pass follows the only path that can be right.
    node, depth = -1, 0
    for index, (token, parent) in enumerate(zip(token_ids, parents, strict=True)):
        if parent == node and depth < len(truth) and token == truth[depth]:
            node, depth = index, depth + 1
    return depth


def right_prefix(nodes: set[NodePath], truth: np.ndarray) -> int:
    """How many of the recorded tokens nodes hold, each node named by the path to it."""
    path: NodePath = ()
    for token in truth.tolist():
        if (*path, token) not in nodes:
            break
        path = (*path, token)
    return len(path)


def replay(transcript: Transcript, step: Step) -> Tally:
    """Drafts at the start of an answer, goes on by what is accepted and one token, to its end."""
    tokens = np.concatenate([transcript.prompt, transcript.completion])
    tally, position = Tally(), len(transcript.prompt)
    while position < len(tokens):
        accepted, num_nodes = step(tokens, position)
        # The last token of the answer may be accepted: then there is none after it.
        tally += Tally(1, accepted, num_nodes)
        position += accepted + 1
    return tally


def replay_specds(drafter: RestDrafter, transcript: Transcript, max_nodes: int) -> Tally:
    session: Session = drafter.session(transcript.prompt)
    seen = len(transcript.prompt)

    def step(tokens: np.ndarray, position: int) -> tuple[int, int]:
        nonlocal seen
        if position > seen:
            session.observe(tokens[seen:position])
            seen = position
        tree = session.draft(max_nodes)
        return num_right(tree, tokens[position:]), len(tree)

    return replay(transcript, step)


def replay_published(
    array: SuffixArray, drafter: RestDrafter, transcript: Transcript, random: np.random.Generator
) -> Tally:
    def step(tokens: np.ndarray, position: int) -> tuple[int, int]:
        nodes = select(retrieve(array, drafter.datastore, tokens[:position]), CHOICES, random)
        return right_prefix(nodes, tokens[position:]), len(nodes)

    return replay(transcript, step)


def compare(datastore: str, transcripts: str) -> dict[str, Any]:
    """The job of a child: each source of transcripts, and all of them, by both selections."""
    from specds import FusedDrafter, RestDrafter

    drafter, array = RestDrafter(datastore), SuffixArray(Path(datastore))
    recorded = load_transcripts(Path(transcripts))
    random = np.random.default_rng(0)

    def run(replay_one: Callable[[Transcript], Tally]) -> dict[str, Tally]:
        tallies: dict[str, Tally] = defaultdict(Tally)
        for transcript in recorded:
            tallies[transcript.source] += replay_one(transcript)
        total = Tally()
        for tally in tallies.values():
            total += tally
        return {**tallies, "all": total}

    published = run(lambda t: replay_published(array, drafter, t, random))
    ours = run(lambda t: replay_specds(drafter, t, CHOICES))
    fused = FusedDrafter(drafter.datastore)
    both = run(lambda t: replay_specds(fused, t, CHOICES))
    budget = _matched_budget(
        published["all"].nodes, lambda n: run(lambda t: replay_specds(drafter, t, n))["all"].nodes
    )
    matched = run(lambda t: replay_specds(drafter, t, budget))
    return {
        "matched_budget": budget,
        "sources": {
            source: {
                "published": published[source].to_dict(),
                "specds": ours[source].to_dict(),
                "specds, as many nodes": matched[source].to_dict(),
                "specds, fused": both[source].to_dict(),
                "ratio": _ratio(ours[source], published[source]),
                "ratio, as many nodes": _ratio(matched[source], published[source]),
            }
            for source in published
        },
    }


def _ratio(ours: Tally, published: Tally) -> float | None:
    """Of the tokens that a draft gets accepted; None where the published one never gets any."""
    return ours.accepted / published.accepted if published.num_accepted else None


def _matched_budget(nodes: float, nodes_of_budget: Callable[[int], float]) -> int:
    """The largest budget whose drafts are on average no larger than `nodes`."""
    low, high = 1, CHOICES
    while low < high:
        middle = (low + high + 1) // 2
        if nodes_of_budget(middle) <= nodes:
            low = middle
        else:
            high = middle - 1
    return low
