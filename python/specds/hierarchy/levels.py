"""What is a level? It drafts, and if it is a model, by verifying the draft of the level below."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING

import torch

from specds._core import TokenTree
from specds.accept.on_host import walk
from specds.drafters.session import EMPTY_TREE, Proposal, Session, within
from specds.hierarchy.draft import Draft, Drawn, Threshold
from specds.hierarchy.text import Text
from specds.stats import LevelStats
from specds.verify.generic import Runner

if TYPE_CHECKING:
    from transformers import PreTrainedModel


# New tokens that may share a pass with a tree: its mask has a row for each of them.
_MOST_WITH_A_TREE = 64
_FIRST_SLOTS = 1024


class CachedModel:
    """A model as a function from a text to logits, with a KV cache between calls.

    The cache rolls back to the common prefix of two texts, so no level has to report a rejection to
    the one below.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self._runner = Runner(model, prompt_length=0, max_length=_FIRST_SLOTS, max_nodes=0)
        self._cache = self._runner.cache
        self._cached: list[int] = []
        self._missing: list[int] = []
        self._tree = EMPTY_TREE

    @torch.no_grad()
    def run(self, tokens: Sequence[int], tree: TokenTree) -> torch.Tensor:
        """Runs a whole text and a draft of what follows it.

        Returns:
            Logits `(1 + num_nodes, vocab_size)`: row 0 after the text, row ``1 + i`` after node
            `i`.
        """
        self._roll_back_to(tokens)
        self._tree = tree
        # A cache takes a tree only once it knows the shapes of the states.
        if not self._cached or len(tokens) - len(self._cached) > _MOST_WITH_A_TREE:
            logits = self._runner.prefill_rows([torch.tensor([tokens])])
            self._cached, self._missing = [*tokens], []
            if len(tree) == 0:
                return logits
            self._roll_back_to(tokens)
        self._missing = [*tokens[len(self._cached) :]]
        # What is new in the text is the beginning of the draft.
        first, *others = self._missing
        parents = [*range(-1, len(others) - 1), *(tree.parents + len(others)).tolist()]
        whole = TokenTree([*others, *tree.token_ids.tolist()], parents)
        return self._runner.verify_rows([first], [whole])[0][len(others) :]

    def commit(self, path: Sequence[int]) -> None:
        """Keeps the text of the last `run` and the nodes `path` of its draft, root to leaf."""
        first = len(self._missing)
        self._cache.commit([[*range(first), *(first + node for node in path)]])
        self._cached += self._missing + self._tree.token_ids[list(path)].tolist()

    def _roll_back_to(self, tokens: Sequence[int]) -> None:
        """Keeps the common prefix with a text, but not its last token, whose logits are wanted."""
        length = min(len(self._cached), len(tokens) - 1)
        if self._cached[:length] != tokens[:length]:
            pairs = zip(self._cached, tokens, strict=False)
            length = next(place for place, (old, new) in enumerate(pairs) if old != new)
        del self._cached[length:]
        self._cache.lengths = [min(length, self._cache.length)]


@contextmanager
def _timed(stats: LevelStats) -> Iterator[None]:
    started = perf_counter()
    yield
    stats.seconds += perf_counter() - started


class RetrievalLevel:
    """A drafter without a model, below all models of a request.

    After tokens on trial it drafts as if they had been observed, or nothing if it cannot.

    Args:
        name: For statistics and messages.
        session: Has the prompt, of `prompt_length` tokens.
        max_nodes: The most nodes of a draft.
    """

    def __init__(self, name: str, session: Session, prompt_length: int, max_nodes: int) -> None:
        self.name = name
        self.stats = LevelStats()
        self.session = session
        self._max_nodes = max_nodes
        self._context_length = prompt_length

    def draft(self, text: Text, most: int) -> Draft:
        """Drafts what follows the text, at most `most` tokens deep."""
        if most <= 0:
            return Draft()
        on_trial = text.tokens[self._context_length :]
        with _timed(self.stats):
            if on_trial:
                tree = self.session.draft_after(on_trial, self._max_nodes)
            else:
                tree = self.session.draft(self._max_nodes)
        tree = within(tree, self._max_nodes, most)
        self.stats.num_drafted += len(tree)
        return Draft(tree, stats=self.stats)

    def observe(self, token_ids: Sequence[int]) -> None:
        self._context_length += len(token_ids)
        with _timed(self.stats):
            self.session.observe(token_ids)


class ModelLevel:
    """A model that drafts by verifying the level below, or token by token if there is none.

    Each pass takes a draft of the level below, and the walk down it chooses tokens of this model's
    own distribution, whatever the draft was. So the level above may accept them by what this model
    says.

    Attributes:
        beneath: Drafts for this level.
        window: The most tokens of a draft; None: only the caller's limit counts.
        self_verify: Whether to hand up as soon as a token's entropy is above the threshold.
        threshold: The level's, learned in this request.
    """

    def __init__(self, name: str, model: CachedModel) -> None:
        self.name = name
        self.stats = LevelStats()
        self._model = model
        self.threshold = Threshold()
        self.beneath: RetrievalLevel | ModelLevel | None = None
        self.window: int | None = None
        self.self_verify = True

    def draft(self, text: Text, most: int) -> Draft:
        """Tokens of this model, at most `most`, until its window is full or it is unsure."""
        start = len(text)
        most = most if self.window is None else min(most, self.window)
        chosen: list[Drawn] = []
        while len(chosen) < most:
            new = self._verify(text, most - len(chosen) - 1)
            chosen += new
            if text.finished or self._is_unsure(new):
                break
        del text.tokens[start:]
        self.stats.num_drafted += len(chosen)
        return Draft.of_chain(chosen, text.samples, self.threshold, self.stats)

    def _verify(self, text: Text, most: int) -> list[Drawn]:
        """Appends what this model accepts of a draft of at most `most` tokens, and one more."""
        draft = Draft() if self.beneath is None else self.beneath.draft(text, most)
        with _timed(self.stats):
            chosen = self._run(text, draft)
        self.stats.num_forwards += 1
        draft.settle([drawn.token_id for drawn in chosen])
        return chosen

    def _run(self, text: Text, draft: Draft) -> list[Drawn]:
        chosen: list[Drawn] = []

        def choose(_: Text, logits: torch.Tensor, proposal: Proposal | None) -> int:
            probs = text.probs(logits)
            token = text.choose(probs, proposal)
            chosen.append(Drawn.of(token, probs))
            return token

        logits = self._model.run(text.tokens, draft.tree)
        self._model.commit(walk(logits, draft.tree, text, choose, draft.proposals))
        return chosen

    def _is_unsure(self, chosen: Sequence[Drawn]) -> bool:
        return self.self_verify and any(drawn.entropy > self.threshold.value for drawn in chosen)
