"""Levels of a hierarchy: a retrieval drafter, and models that verify the level below them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

import torch
from transformers import PreTrainedModel

from specds._core import Session, TokenTree
from specds.drafters.session import EMPTY_TREE, Proposal
from specds.generation.acceptance import walk
from specds.generation.budget import known_part
from specds.generation.stats import LevelStats
from specds.transformers.hierarchy.context import LevelContext
from specds.transformers.hierarchy.draft import Draft, Drawn, Threshold, suggestion
from specds.transformers.verify.generic import Runner

# Maximum new tokens in one pass with a tree: its mask has a row for each of them.
_MOST_WITH_A_TREE = 64
# Maximum nodes that a model ranks: a suggestion has at most 1,024 tokens.
_MOST_READ = 64
_FIRST_SLOTS = 1024


class CachedModel:
    """Model as a function from a token sequence to logits, with a KV cache.

    Each call rolls the cache back to the common prefix with the call before. Levels can therefore
    retract tokens without notifying it.
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
        """Run a whole sequence and a tree after it.

        Returns:
            Logits `(1 + num_nodes, vocab_size)`: row 0 after the sequence, row ``1 + i`` after node
            `i`.
        """
        self._roll_back_to(tokens)
        self._tree = tree
        # The cache knows the shapes of its states only after a prefill.
        if not self._cached or len(tokens) - len(self._cached) > _MOST_WITH_A_TREE:
            logits = self._runner.prefill_rows([torch.tensor([tokens])])
            self._cached, self._missing = [*tokens], []
            if len(tree) == 0:
                return logits
            self._roll_back_to(tokens)
        self._missing = [*tokens[len(self._cached) :]]
        # New tokens of the sequence come first in the verified tree.
        first, *others = self._missing
        parents = [*range(-1, len(others) - 1), *(tree.parents + len(others)).tolist()]
        whole = TokenTree([*others, *tree.token_ids.tolist()], parents)
        return self._runner.verify_rows([first], [whole])[0][len(others) :]

    def commit(self, path: Sequence[int]) -> None:
        """Keep the sequence of the last `run` and the nodes `path` of its tree, root to leaf."""
        first = len(self._missing)
        self._cache.commit([[*range(first), *(first + node for node in path)]])
        self._cached += self._missing + self._tree.token_ids[list(path)].tolist()

    def _roll_back_to(self, tokens: Sequence[int]) -> None:
        """Roll back to the common prefix, and before the last token, whose logits are needed."""
        length = min(len(self._cached), len(tokens) - 1)
        if self._cached[:length] != tokens[:length]:
            pairs = zip(self._cached, tokens, strict=False)
            length = next(place for place, (old, new) in enumerate(pairs) if old != new)
        del self._cached[length:]
        self._cache.lengths = [min(length, self._cache.length)]


class Level(ABC):
    """One level of a hierarchy in one request, named in statistics and messages."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stats = LevelStats()

    @abstractmethod
    def draft(self, context: LevelContext, most: int) -> Draft:
        """Draft at most `most` tokens deep after the context, which is left unchanged."""

    def observe(self, token_ids: Sequence[int], num_verified: int | None) -> None:  # noqa: B027
        """Observe new tokens like `Session.observe` (no-op by default)."""

    def finish(self) -> None:  # noqa: B027
        """Release per-request state (no-op by default)."""

    @contextmanager
    def _timed(self) -> Iterator[None]:
        started = perf_counter()
        yield
        self.stats.seconds += perf_counter() - started


class RetrievalLevel(Level):
    """Drafter without a model, the lowest level.

    After speculative tokens it drafts as if they had been observed, or nothing if it cannot.

    Args:
        session: Session that has observed the prompt, of `prompt_length` tokens.
        known_tokens: Size of the vocabulary that the session and all models share.
        max_nodes_returned: Maximum nodes that the model above verifies.
        max_nodes: Maximum nodes of a tree after the context.

    Attributes:
        takes_suggestions: Whether a model can rank its drafts, like those of the fused drafter.
    """

    def __init__(
        self,
        name: str,
        session: Session,
        prompt_length: int,
        known_tokens: int,
        max_nodes_returned: int,
        max_nodes: int,
    ) -> None:
        super().__init__(name)
        self.session = session
        self.takes_suggestions = session.suggest([])
        self._known_tokens = known_tokens
        self._max_nodes_returned = max_nodes_returned
        self._max_nodes = max(max_nodes, max_nodes_returned)
        self._tree: TokenTree | None = None
        self._context_length = prompt_length

    def branches(self) -> Draft:
        """Return continuations of the context that the target itself verifies."""
        return self._counted(self._of_context())

    def ranked(self, model: "ModelLevel", context: LevelContext) -> Draft:
        """Return the branches drafted again with the probabilities of a model.

        One forward pass over the retrieved tree is cheaper than drafting token by token.
        """
        tree = self._of_context().known(self._known_tokens).limited(_MOST_READ)
        probs = model.read(context, tree)[:, : self._known_tokens]
        with self._timed():
            self.session.suggest(*suggestion(probs, tree))
        self._tree = None
        return self.branches()

    def draft(self, context: LevelContext, most: int) -> Draft:
        trial = context.tokens[self._context_length :]
        if most <= 0 or not self._knows(trial):
            return Draft(EMPTY_TREE)
        if trial:
            with self._timed():
                tree = self.session.draft_after(trial, self._max_nodes_returned)
        else:
            tree = self._of_context()
        tree = tree.limited(self._max_nodes_returned, most)
        return self._counted(known_part(tree, self._known_tokens))

    def observe(self, token_ids: Sequence[int], num_verified: int | None) -> None:
        self._tree = None
        self._context_length += len(token_ids)
        with self._timed():
            self.session.observe(token_ids, num_verified)

    def finish(self) -> None:
        self.session.finish()

    def _knows(self, token_ids: Sequence[int]) -> bool:
        return max(token_ids, default=0) < self._known_tokens

    def _of_context(self) -> TokenTree:
        if self._tree is None:
            with self._timed():
                self._tree = self.session.draft(self._max_nodes)
        return self._tree

    def _counted(self, tree: TokenTree) -> Draft:
        self.stats.num_drafted += len(tree)
        return Draft(tree, stats=self.stats)


class ModelLevel(Level):
    """Model that drafts by verifying the level below it, or token by token without one.

    Tree acceptance over the lower draft chooses tokens of this model's own distribution. The result
    is therefore distributed as if this model had drafted alone, and the level above can accept it
    by this model's probabilities.

    Attributes:
        lower: The level below, if any.
        window: Maximum tokens of a draft; None if only the caller's limit applies.
        self_verify: Whether to stop as soon as a token's entropy exceeds the threshold.
        threshold: Entropy threshold, learned in this request.
    """

    def __init__(self, name: str, model: CachedModel) -> None:
        super().__init__(name)
        self._model = model
        self.threshold = Threshold()
        self.lower: Level | None = None
        self.window: int | None = None
        self.self_verify = True

    def draft(self, context: LevelContext, most: int) -> Draft:
        """Draft tokens of this model until its window is full or its entropy is too high."""
        start = len(context)
        most = most if self.window is None else min(most, self.window)
        chosen: list[Drawn] = []
        while len(chosen) < most:
            new = self._verify(context, most - len(chosen) - 1)
            chosen += new
            if context.finished or self._is_unsure(new):
                break
        context.cut(start)
        self.stats.num_drafted += len(chosen)
        return Draft.of_chain(chosen, context.samples, self.threshold, self.stats)

    def read(self, context: LevelContext, tree: TokenTree) -> torch.Tensor:
        """Return next-token probabilities over a tree, `(1 + num_nodes, vocab_size)`."""
        with self._timed():
            logits = self._model.run(context.tokens, tree)
            self._model.commit([])
        self.stats.num_forwards += 1
        return torch.softmax(logits.float(), -1)

    def _verify(self, context: LevelContext, most: int) -> list[Drawn]:
        """Verify a lower draft of `most` tokens; append the accepted tokens and one more."""
        draft = Draft(EMPTY_TREE) if self.lower is None else self.lower.draft(context, most)
        with self._timed():
            chosen = self._run(context, draft)
        self.stats.num_forwards += 1
        draft.settle([drawn.token_id for drawn in chosen])
        return chosen

    def _run(self, context: LevelContext, draft: Draft) -> list[Drawn]:
        chosen: list[Drawn] = []

        def choose(_: LevelContext, logits: torch.Tensor, proposal: Proposal | None) -> int:
            probs = context.probs(logits)
            token = context.choose(probs, proposal)
            chosen.append(Drawn.of(token, probs))
            return token

        logits = self._model.run(context.tokens, draft.tree)
        self._model.commit(walk(logits, draft.tree, context, choose, draft.proposals))
        return chosen

    def _is_unsure(self, chosen: Sequence[Drawn]) -> bool:
        return self.self_verify and any(drawn.entropy > self.threshold.value for drawn in chosen)
