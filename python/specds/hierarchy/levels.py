"""What is a level: something that drafts, and if it is a model, verifies the level beneath."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

from specds.drafters.session import EMPTY_TREE, within
from specds.hierarchy.draft import Draft, Drawn, Threshold, by_edge, subtree
from specds.stats import LevelStats

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from specds._core import TokenTree
    from specds.drafters.session import Session
    from specds.hierarchy.cached_model import CachedModel
    from specds.hierarchy.text import Text

Answer = TypeVar("Answer")


class LevelError(RuntimeError):
    """A level failed; its `__cause__` says why."""

    def __init__(self, level: Level) -> None:
        super().__init__(f"level `{level.name}` failed")
        self.level = level


class Level(ABC):
    """One level of a hierarchy, in one request.

    Args:
        name: In statistics and messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.stats = LevelStats()

    @abstractmethod
    def draft(self, text: Text, most: int) -> Draft:
        """Drafts what follows the text, at most `most` tokens deep, and leaves the text as it was.

        Raises:
            LevelError: This level or one beneath it failed.
        """

    def observe(self, token_ids: Sequence[int], num_verified: int | None) -> None:  # noqa: B027
        """As `Session.observe`; a level may ignore it."""

    def finish(self) -> None:  # noqa: B027
        """Ends the request; most levels have nothing to end."""

    def _timed(self, call: Callable[[], Answer]) -> Answer:
        started = perf_counter()
        try:
            return call()
        except Exception as error:
            raise LevelError(self) from error
        finally:
            self.stats.seconds += perf_counter() - started


class RetrievalLevel(Level):
    """A drafter without a model, at the bottom.

    After tokens on trial it drafts as if they had been observed. A drafter that cannot is asked
    where the context ends, and what follows tokens on trial is the part of that tree beneath them.

    Args:
        name: In statistics and messages.
        session: A session of the drafter, which has the prompt.
        prompt_length: The tokens of that.
        max_nodes_up: The most nodes that the model above verifies.
        max_nodes: The most nodes of the tree where the context ends.
    """

    def __init__(
        self, name: str, session: Session, prompt_length: int, max_nodes_up: int, max_nodes: int
    ) -> None:
        super().__init__(name)
        self.session = session
        self._max_nodes_up = max_nodes_up
        self._max_nodes = max(max_nodes, max_nodes_up)
        self._tree: TokenTree | None = None
        self._context_length = prompt_length

    def branches(self, above: Draft) -> Draft:
        """What may follow the context, for the target itself, by this drafter and the models above.

        The fused drafter takes what those hold to be likely as one more source.
        """
        is_used = False
        if above.chosen:
            is_used = self._timed(partial(self.session.suggest, *above.suggestion()))
            self._tree = None
        return replace(self._handed_up(self._of_context()), holds_above=is_used)

    def draft(self, text: Text, most: int) -> Draft:
        """What may follow the tokens on trial."""
        if most <= 0:
            return Draft(EMPTY_TREE)
        on_trial = text.tokens[self._context_length :]
        tree = None
        if on_trial:
            tree = self._timed(partial(self.session.draft_after, on_trial, self._max_nodes_up))
        if tree is None:
            tree = subtree(self._of_context(), on_trial)
        return self._handed_up(within(tree, self._max_nodes_up, most))

    def observe(self, token_ids: Sequence[int], num_verified: int | None) -> None:
        """As `Session.observe`."""
        self._tree = None
        self._context_length += len(token_ids)
        self._timed(partial(self.session.observe, token_ids, num_verified))

    def finish(self) -> None:
        """Ends the drafter's request."""
        self.session.finish()

    def _of_context(self) -> TokenTree:
        if self._tree is None:
            self._tree = self._timed(partial(self.session.draft, self._max_nodes))
        return self._tree

    def _handed_up(self, tree: TokenTree) -> Draft:
        self.stats.num_drafted += len(tree)
        return Draft(tree, stats=self.stats)


class ModelLevel(Level):
    """A model that drafts by verifying the level beneath; with none beneath, token by token.

    Each pass takes a draft of the level beneath, and the walk down it chooses tokens of this
    model's own distribution, whatever the draft was. So what is handed up is as if this model had
    drafted alone, and the level above may accept it by what this model says.

    Args:
        name: In statistics and messages.
        model: The model, with the states of this request.

    Attributes:
        beneath: Drafts for this level.
        window: The most tokens of a draft; None where only the caller's limit counts.
        self_verify: Whether to hand up as soon as a token's entropy is above the threshold.
        threshold: The level's, learned in this request.
    """

    def __init__(self, name: str, model: CachedModel) -> None:
        super().__init__(name)
        self._model = model
        self.threshold = Threshold()
        self.beneath: Level | None = None
        self.window: int | None = None
        self.self_verify = True

    def draft(self, text: Text, most: int) -> Draft:
        """Tokens of this model, until its window is full or it is unsure."""
        start = len(text)
        most = most if self.window is None else min(most, self.window)
        chosen: list[Drawn] = []
        while len(chosen) < most:
            new = self._verify(text, most - len(chosen) - 1)
            chosen += new
            if text.ends_with(new[-1].token_id) or self._is_unsure(new):
                break
        text.cut(start)
        self.stats.num_drafted += len(chosen)
        return Draft.of_chain(chosen, text.samples, self.threshold, self.stats)

    def _verify(self, text: Text, most: int) -> list[Drawn]:
        """Appends to the text what this model makes of a draft of `most` tokens, and one more."""
        draft = Draft(EMPTY_TREE) if self.beneath is None else self.beneath.draft(text, most)
        chosen = self._timed(partial(self._run, text, draft))
        self.stats.num_forwards += 1
        draft.settle([drawn.token_id for drawn in chosen])
        return chosen

    def _run(self, text: Text, draft: Draft) -> list[Drawn]:
        path, chosen = _walk(self._model.run(text.tokens, draft.tree), draft, text)
        self._model.commit(path)
        return chosen

    def _is_unsure(self, chosen: Sequence[Drawn]) -> bool:
        return self.self_verify and any(drawn.entropy > self.threshold.value for drawn in chosen)


def _walk(logits: torch.Tensor, draft: Draft, text: Text) -> tuple[list[int], list[Drawn]]:
    """Chooses tokens down a draft, and appends them: the nodes that they are, and the tokens."""
    nodes, proposals = by_edge(draft.tree), draft.proposals
    path: list[int] = []
    chosen: list[Drawn] = []
    node: int | None = -1
    while node is not None:
        probs = text.probs(logits[node + 1])
        token = text.choose(probs, proposals.get(node))
        text.append(token)
        chosen.append(Drawn.of(token, probs))
        node = nodes.get((node, token))
        if node is not None:
            path.append(node)
        if text.ends_with(token):
            break
    return path, chosen
