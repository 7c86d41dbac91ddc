"""What is a level: something that drafts, and if it is a model, verifies the level beneath."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Protocol, TypeVar

from specds.drafters.session import within
from specds.hierarchy.draft import EMPTY_TREE, Draft, Drawn, Threshold, by_edge, subtree
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


class Level(Protocol):
    """One level of a hierarchy, in one request."""

    name: str
    stats: LevelStats

    def draft(self, text: Text, most: int) -> Draft:
        """Drafts what follows the text, at most `most` tokens deep, and leaves the text as it was.

        Raises:
            LevelError: This level or one beneath it failed.
        """
        ...

    def observe(self, token_ids: Sequence[int]) -> None:
        """Takes the tokens that the target emitted."""
        ...

    def finish(self) -> None:
        """Ends the request."""
        ...


class RetrievalLevel:
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
        self.name = name
        self.stats = LevelStats()
        self._session = session
        self._max_nodes_up = max_nodes_up
        self._max_nodes = max(max_nodes, max_nodes_up)
        self._tree: TokenTree | None = None
        self._context_length = prompt_length

    def branches(self) -> Draft:
        """What may follow the context, for the target itself."""
        return self._handed_up(self._of_context())

    def draft(self, text: Text, most: int) -> Draft:
        """What may follow the tokens on trial."""
        if most <= 0:
            return Draft(EMPTY_TREE)
        on_trial = text.tokens[self._context_length :]
        tree = None
        if on_trial:
            tree = self._timed(partial(self._session.draft_after, on_trial, self._max_nodes_up))
        if tree is None:
            tree = subtree(self._of_context(), on_trial)
        return self._handed_up(within(tree, self._max_nodes_up, most))

    def observe(self, token_ids: Sequence[int]) -> None:
        """Takes the tokens that the target emitted."""
        self._tree = None
        self._context_length += len(token_ids)
        self._timed(partial(self._session.observe, token_ids))

    def finish(self) -> None:
        """Ends the drafter's request."""
        self._session.finish()

    def _of_context(self) -> TokenTree:
        if self._tree is None:
            self._tree = self._timed(partial(self._session.draft, self._max_nodes))
        return self._tree

    def _handed_up(self, tree: TokenTree) -> Draft:
        self.stats.num_drafted += len(tree)
        return Draft(tree, stats=self.stats)

    def _timed(self, call: Callable[[], Answer]) -> Answer:
        started = perf_counter()
        try:
            return call()
        except Exception as error:
            raise LevelError(self) from error
        finally:
            self.stats.seconds += perf_counter() - started


@dataclass
class ModelLevel:
    """A model that drafts by verifying the level beneath; with none beneath, token by token.

    Each pass takes a draft of the level beneath, and the walk down it chooses tokens of this
    model's own distribution, whatever the draft was. So what is handed up is as if this model had
    drafted alone, and the level above may accept it by what this model says.

    Attributes:
        name: In statistics and messages.
        model: The model, with the states of this request.
        stats: What it does is counted here.
        beneath: Drafts for this level.
        window: The most tokens of a draft; None where only the caller's limit counts.
        self_verify: Whether to hand up as soon as a token's entropy is above the threshold.
        threshold: The level's, learned in this request.
    """

    name: str
    model: CachedModel
    stats: LevelStats
    beneath: Level | None = None
    window: int | None = None
    self_verify: bool = True
    threshold: Threshold = field(default_factory=Threshold)

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

    def observe(self, token_ids: Sequence[int]) -> None:
        """Nothing: the next text tells."""

    def finish(self) -> None:
        """Nothing: the states go with the level."""

    def _verify(self, text: Text, most: int) -> list[Drawn]:
        """Appends to the text what this model makes of a draft of `most` tokens, and one more."""
        draft = Draft(EMPTY_TREE) if self.beneath is None else self.beneath.draft(text, most)
        started = perf_counter()
        try:
            logits = self.model.run(text.tokens, draft.tree)
            path, chosen = _walk(logits, draft, text)
            self.model.commit(path)
        except Exception as error:
            raise LevelError(self) from error
        self.stats.num_forwards += 1
        self.stats.seconds += perf_counter() - started
        draft.settle([drawn.token_id for drawn in chosen])
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
