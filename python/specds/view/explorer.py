"""Matches of a text, their passages, and the drafts of each source."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from threading import Lock
from typing import Any

from specds._core import Datastore
from specds.bench.acceptance.measure import follow
from specds.bench.transcripts import Transcript
from specds.drafters import Drafter, FusedConfig, FusedDrafter
from specds.models.healing import Spellings, completions
from specds.models.render import known_from, text_after, tree_in_words
from specds.models.tokenization import Tokenizer
from specds.papers import RestDrafter

MOST_NODES = 64
_CONTEXT_TOKENS = 2048
_BEGINNING_TOKENS = 40
_MOST_STEPS = 400
_MOST_WORDS = 8
# A megabyte takes seconds to tokenize, and others wait meanwhile.
_MOST_CHARACTERS = 10_000


class Explorer:
    """Computes the answers for a datastore; threads can share it."""

    def __init__(
        self, datastore: Datastore, tokenizer: Tokenizer, transcripts: Sequence[Transcript] = ()
    ) -> None:
        self._datastore = datastore
        self._transcripts = transcripts
        self._tokenizer, self._spellings = tokenizer, Spellings(tokenizer)
        # Without a memory: nothing that is typed is kept.
        both = FusedConfig(recycled=False)
        self._drafters: dict[str, Drafter] = {
            "all sources together": FusedDrafter(datastore, both, memory=False),
            "datastore": FusedDrafter(datastore, replace(both, context=False), memory=False),
            "the text itself": FusedDrafter(None, both),
            "REST": RestDrafter(datastore),
        }
        self._one_by_one = Lock()

    def about(self) -> dict[str, Any]:
        return {
            "path": str(self._datastore.path),
            "num_tokens": self._datastore.num_tokens,
            "num_documents": self._datastore.num_documents,
            "num_transcripts": len(self._transcripts),
            "beginning": self._beginning(),
        }

    def _beginning(self) -> str:
        """Return the beginning of the first document, up to its middle."""
        tokens = self._datastore.document_at(0).token_ids.tolist()
        return str(self._tokenizer.decode(tokens[: min(_BEGINNING_TOKENS, 1 + len(tokens) // 2)]))

    def replay(self, number: int, num_nodes: int) -> dict[str, Any]:
        """Return the prompt of a transcript, and the first steps of its answer.

        Each step has the draft, its accepted nodes, and the new tokens with their sources.
        """
        with self._one_by_one:
            transcript = self._transcripts[number]
            context = transcript.prompt_ids.tolist()
            prompt = str(self._tokenizer.decode(context[-_CONTEXT_TOKENS:]))
            session = self._drafters["all sources together"].session(context)
            steps = []
            for replayed in islice(follow(session, transcript, num_nodes), _MOST_STEPS):
                step = replayed.step
                texts = [
                    text_after(self._tokenizer, [*context, *step.token_ids[:index]], [token])
                    for index, token in enumerate(step.token_ids)
                ]
                steps.append(
                    {
                        "tree": tree_in_words(self._tokenizer, step.tree, context),
                        "path": [int(node) for node in step.path],
                        "tokens": texts,
                        "sources": step.sources,
                    }
                )
                context += step.token_ids
        return {"prompt": prompt, "steps": steps}

    def explore(self, text: str, num_nodes: int) -> dict[str, Any]:
        """Return the match of a text's end, and the tree that each source drafts after it.

        Both are those of the most frequent completion if the text ends within a word; `completions`
        has the others.
        """
        with self._one_by_one:
            context = self._tokenizer.encode(text[-_MOST_CHARACTERS:], add_special_tokens=False)
            context = context[-_CONTEXT_TOKENS:]
            if not context:
                return {"num_tokens": 0, "match": None, "completions": None, "trees": {}}
            found = completions(self._datastore, self._tokenizer, self._spellings, context)
            words = None
            if found is not None:
                some = zip(found.token_ids.tolist(), found.counts.tolist(), strict=True)
                texts = [
                    {"text": text_after(self._tokenizer, found.context, [token]), "count": count}
                    for token, count in islice(some, _MOST_WORDS)
                ]
                words = {"unfinished": found.typed, "words": texts}
                context = [*found.context, int(found.token_ids[0])]
            match = known_from(self._datastore, self._tokenizer, context)
            trees = {}
            for name, drafter in self._drafters.items():
                session = drafter.session(context)
                tree = session.draft(num_nodes)
                session.finish()
                trees[name] = tree_in_words(self._tokenizer, tree, context)
        return {"num_tokens": len(context), "match": match, "completions": words, "trees": trees}
