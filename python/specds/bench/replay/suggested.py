"""A recorded drafter: what it suggested at each token of an answer, and what it accepts alone."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from specds._core import TokenTree
from specds.bench.engines import ENTRANTS, Entrant
from specds.drafters.session import EMPTY_TREE, Session

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from specds.bench.transcripts import Transcript


def suggestion(transcript: Transcript, position: int) -> list[int]:
    """The tokens that were drafted before the answer's token at `position`.

    Only how many of them were right is recorded: each other one stands for itself less one, 0 for
    1, which is wrong in every run alike. A text is an easier judge of these than of a real
    drafter's, which are plausible.
    """
    if position >= len(transcript.suggested):
        return []
    right, length = transcript.suggested[position]
    truth: list[int] = transcript.completion_ids[position : position + length].tolist()
    truth += [0] * (length - len(truth))
    return truth[:right] + [token - 1 if token else 1 for token in truth[right:]]


class SuggestedDrafter:
    """Drafts what is suggested to it, and nothing else."""

    vocab_size = None

    def session(self, prompt_ids: Any) -> Session:
        """Starts a request."""
        return _SuggestedSession()


class _SuggestedSession(Session):
    def __init__(self) -> None:
        self._tree = EMPTY_TREE

    def suggest(self, token_ids: Any, parents: Any = None, probs: Any = None) -> bool:
        chain = range(-1, len(token_ids) - 1)
        self._tree = TokenTree(token_ids, chain if parents is None else parents, probs)
        return True

    def draft(self, max_nodes: int, *_: Any, **__: Any) -> TokenTree:
        tree, self._tree = self._tree, EMPTY_TREE
        return tree.prefix(min(max_nodes, len(tree)))

    def observe(self, *_: Any) -> None:
        pass


def _open(_: Any) -> AbstractContextManager[Callable[[], SuggestedDrafter]]:
    return nullcontext(SuggestedDrafter)


ENTRANTS["suggested"] = Entrant(takes_datastore=False, open=_open)
