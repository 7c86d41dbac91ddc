"""One answer step by step: what was drafted, what of it was accepted, where it is known from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specds.drafters.session import within
from specds.drafters.watched import Step, right_path
from specds.readable import known_from, text_after, tree_in_words

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specds._core import Datastore
    from specds.bench.transcripts import Transcript
    from specds.drafters import Drafter

_PROMPT_TOKENS = 120


def story(
    drafter: Drafter,
    transcript: Transcript,
    tokenizer: PreTrainedTokenizerBase,
    max_nodes: int,
    *,
    datastore: Datastore | None = None,
    max_steps: int = 100,
) -> dict[str, Any]:
    """The steps of a replay in words: `prompt`, its end, and `steps`.

    A step has the `tokens` that were emitted, their `sources` (null is the target's own), the
    `tree`, the `path` of its accepted nodes, and the `match` of its context in the datastore.

    What comes after `max_steps` is left out.
    """
    before, truth = transcript.prompt_ids.tolist(), transcript.completion_ids.tolist()
    prompt = text_after(tokenizer, before[:-_PROMPT_TOKENS], before[-_PROMPT_TOKENS:])
    steps: list[dict[str, Any]] = []
    session = drafter.session(before)
    position = 0
    try:
        while position < len(truth) and len(steps) < max_steps:
            max_depth = len(truth) - position - 1
            tree = within(session.draft(max_nodes, max_depth), max_nodes, max_depth)
            path = right_path(tree, truth[position:])
            step = Step(tree, path, truth[position : position + len(path) + 1])
            steps.append(_in_words(step, tokenizer, before, datastore))
            session.observe(step.token_ids)
            before = [*before, *step.token_ids]
            position += len(step.token_ids)
    finally:
        session.finish()
    return {"prompt": prompt, "steps": steps, "is_whole": position >= len(truth)}


def _in_words(
    step: Step,
    tokenizer: PreTrainedTokenizerBase,
    before: list[int],
    datastore: Datastore | None,
) -> dict[str, Any]:
    tokens, told = [], list(before)
    for token in step.token_ids:
        tokens.append(text_after(tokenizer, told, [token]))
        told.append(token)
    match = None if datastore is None else known_from(datastore, tokenizer, before, num_passages=1)
    return {
        "tokens": tokens,
        "sources": step.sources,
        "tree": tree_in_words(tokenizer, step.tree, before),
        "path": step.path,
        "match": match,
    }
