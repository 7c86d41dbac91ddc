"""One answer step by step as text: the draft, what was accepted, the match in the datastore."""

from __future__ import annotations

from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Any

from specds._core import Datastore
from specds.bench.replay.measure import follow
from specds.bench.transcripts import Transcript
from specds.drafters import Drafter
from specds.readable import known_from, text_after, tree_in_words

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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
    """The first steps of a replay in words, and the end of the `prompt`.

    A step has the `tokens` that were emitted, their `sources` (null is the target's own), the
    `tree`, the `path` of its accepted nodes, and the `match` of its context in the datastore.
    """
    before: list[int] = transcript.prompt_ids.tolist()
    prompt = text_after(tokenizer, before[:-_PROMPT_TOKENS], before[-_PROMPT_TOKENS:])
    steps: list[dict[str, Any]] = []
    session = drafter.session(transcript.prompt_ids)
    with closing(follow(session, transcript, max_nodes)) as replayed:
        for step in (each.step for each in islice(replayed, max_steps)):
            match = None
            if datastore is not None:
                match = known_from(datastore, tokenizer, before, num_passages=1)
            tree, tokens = tree_in_words(tokenizer, step.tree, before), []
            for token in step.token_ids:
                tokens.append(text_after(tokenizer, before, [token]))
                before.append(token)
            told = {"tokens": tokens, "sources": step.sources, "tree": tree, "path": step.path}
            steps.append({**told, "match": match})
    num_told = len(before) - len(transcript.prompt_ids)
    is_whole = num_told == len(transcript.completion_ids)
    return {"prompt": prompt, "steps": steps, "is_whole": is_whole}
