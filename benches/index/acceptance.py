"""How many tokens of recorded answers are drafted right: replayed, with no model run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from index.published_rest import CHOICES, PublishedDrafter
from index.tokens import load_transcripts
from rivals import RIVALS, RivalAbsentError, RivalInputs
from rivals.corpus import RivalCorpus
from specds import FusedDrafter, RestDrafter
from specds.bench.replay.measure import replay_all, together
from specds.bench.replay.report import figures

if TYPE_CHECKING:
    from collections.abc import Callable

    from index.tokens import TokenCorpus
    from specds.bench.replay.measure import Trace
    from specds.drafters import Drafter

RIVAL = "draftretriever"
"""It learns from the request too: its like among our drafters is the fused one."""


def compare(datastore: str, transcripts: str) -> dict[str, Any]:
    """The job of a child: each source of transcripts, and all of them, by both selections."""
    drafter = RestDrafter(datastore)
    recorded = load_transcripts(Path(transcripts))

    def run(drafter: Drafter, max_nodes: int) -> dict[str, Trace]:
        traces = replay_all(lambda: drafter, max_nodes, recorded)
        return {**traces, "all": together(traces.values())}

    published = run(PublishedDrafter(drafter.datastore), CHOICES)
    ours = run(drafter, CHOICES)
    both = run(FusedDrafter(drafter.datastore), CHOICES)
    budget = _matched_budget(_nodes(published["all"]), lambda n: _nodes(run(drafter, n)["all"]))
    matched = run(drafter, budget)
    return {
        "matched_budget": budget,
        "sources": {
            source: {
                "published": figures(published[source]),
                "specds": figures(ours[source]),
                "specds, as many nodes": figures(matched[source]),
                "specds, fused": figures(both[source]),
                "ratio": _ratio(ours[source], published[source]),
                "ratio, as many nodes": _ratio(matched[source], published[source]),
            }
            for source in published
        },
    }


def replay_rival(
    corpus: TokenCorpus, transcripts: Path, folder: Path, python: Path
) -> dict[str, Any]:
    """The figures of another retriever of drafts over the same tokens; none where it is absent."""
    recorded, facts = load_transcripts(transcripts), corpus.facts
    contexts = [transcript.prompt_ids.tolist() for transcript in recorded[:1]]
    indexed = RivalCorpus(corpus.stream(), facts.vocab_size, facts.separator)
    inputs = RivalInputs(facts.vocab_size, contexts, python, indexed, folder)
    try:
        with RIVALS[RIVAL].open(inputs) as make:
            drafter = make()
            traces = replay_all(lambda: drafter, CHOICES, recorded)
    except RivalAbsentError:
        return {}
    return figures(together(traces.values()))


def _nodes(trace: Trace) -> float:
    return trace.stats.num_draft_tokens / max(trace.stats.num_drafts, 1)


def _ratio(ours: Trace, published: Trace) -> float | None:
    """Of the tokens that a draft gets accepted; None where the published one never gets any."""
    if published.stats.num_accepted_tokens == 0:
        return None
    lengths = (trace.stats.mean_acceptance_length for trace in (ours, published))
    return (next(lengths) - 1) / (next(lengths) - 1)


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
