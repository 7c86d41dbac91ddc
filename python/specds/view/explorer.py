"""Matches of a text, their passages, and the drafts of each source."""

from dataclasses import replace
from threading import Lock
from typing import Any

from specds._core import Datastore
from specds.drafters import Drafter, FusedConfig, FusedDrafter, RestDrafter
from specds.models.render import known_from, tree_in_words
from specds.models.tokenization import Tokenizer

MOST_NODES = 64
_CONTEXT_TOKENS = 2048
# A megabyte takes seconds to tokenize, and others wait meanwhile.
_MOST_CHARACTERS = 10_000


class Explorer:
    """Computes the answers for a datastore; threads can share it."""

    def __init__(self, datastore: Datastore, tokenizer: Tokenizer) -> None:
        self._datastore = datastore
        self._tokenizer = tokenizer
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
        }

    def explore(self, text: str, num_nodes: int) -> dict[str, Any]:
        """Return the match of a text's end, and the tree that each source drafts after it."""
        with self._one_by_one:
            context = self._tokenizer.encode(text[-_MOST_CHARACTERS:], add_special_tokens=False)
            context = context[-_CONTEXT_TOKENS:]
            if not context:
                return {"num_tokens": 0, "match": None, "trees": {}}
            match = known_from(self._datastore, self._tokenizer, context)
            trees = {}
            for name, drafter in self._drafters.items():
                session = drafter.session(context)
                tree = session.draft(min(num_nodes, MOST_NODES))
                session.finish()
                trees[name] = tree_in_words(self._tokenizer, tree, context)
        return {"num_tokens": len(context), "match": match, "trees": trees}
