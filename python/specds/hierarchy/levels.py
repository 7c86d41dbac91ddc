"""What is a level: something that drafts, and if it is a model, verifies the level beneath.

A model runs over a text and a draft of what follows, and its cache keeps what it can.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

import torch
from transformers import PreTrainedModel

from specds._core import Session, TokenTree
from specds.accept.on_host import walk
from specds.decoding import known_part
from specds.drafters.session import EMPTY_TREE, Proposal
from specds.hierarchy.draft import Draft, Drawn, Threshold, suggestion
from specds.hierarchy.text import Text
from specds.stats import LevelStats
from specds.verify.generic import Runner

# New tokens that may share a pass with a tree: its mask has a row for each of them.
_MOST_WITH_A_TREE = 64
# The most nodes that a model reads to rank them: a suggestion has at most 1,024.
_MOST_READ = 64
_FIRST_SLOTS = 1024


class CachedModel:
    """A model as a function from a text to logits; its KV cache remembers what was run before.

    Where the text of a call differs from that of the call before, the cache is rolled back to what
    they have in common. So whoever takes tokens back need not say so, at any level.
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
        """Remembers the text of the last `run` and the nodes `path` of its draft, root to leaf."""
        first = len(self._missing)
        self._cache.commit([[*range(first), *(first + node for node in path)]])
        self._cached += self._missing + self._tree.token_ids[list(path)].tolist()

    def _roll_back_to(self, tokens: Sequence[int]) -> None:
        """Forgets what the text does not begin with, and its last token: its logits are wanted."""
        length = min(len(self._cached), len(tokens) - 1)
        if self._cached[:length] != tokens[:length]:
            pairs = zip(self._cached, tokens, strict=False)
            length = next(place for place, (old, new) in enumerate(pairs) if old != new)
        del self._cached[length:]
        self._cache.lengths = [min(length, self._cache.length)]


class Level(ABC):
    """One level of a hierarchy, in one request; the name is for statistics and messages."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stats = LevelStats()

    @abstractmethod
    def draft(self, text: Text, most: int) -> Draft:
        """Drafts what follows the text, at most `most` tokens deep; the text stays as it was."""

    def observe(self, token_ids: Sequence[int], num_verified: int | None) -> None:  # noqa: B027
        """As `Session.observe`; a level may ignore it."""

    def finish(self) -> None:  # noqa: B027
        """Ends the request; most levels have nothing to end."""

    @contextmanager
    def _timed(self) -> Iterator[None]:
        started = perf_counter()
        yield
        self.stats.seconds += perf_counter() - started


class RetrievalLevel(Level):
    """A drafter without a model, at the bottom.

    After tokens on trial it drafts as if they had been observed, or nothing where it cannot.

    Args:
        session: Has the prompt, of `prompt_length` tokens.
        known_tokens: The tokens below this are known to the session and to the models.
        max_nodes_up: The most nodes that the model above verifies.
        max_nodes: The most nodes of the tree where the context ends.

    Attributes:
        takes_suggestions: Whether a model can rank its drafts, as the fused drafter's.
    """

    def __init__(
        self,
        name: str,
        session: Session,
        prompt_length: int,
        known_tokens: int,
        max_nodes_up: int,
        max_nodes: int,
    ) -> None:
        super().__init__(name)
        self.session = session
        self.takes_suggestions = session.suggest([])
        self._known_tokens = known_tokens
        self._max_nodes_up = max_nodes_up
        self._max_nodes = max(max_nodes, max_nodes_up)
        self._tree: TokenTree | None = None
        self._context_length = prompt_length

    def branches(self) -> Draft:
        """What may follow the context, for the target itself."""
        return self._handed_up(self._of_context())

    def ranked(self, model: "ModelLevel", text: Text) -> Draft:
        """The same after a model has read it: it is drafted anew of that model's word too.

        One pass over what is found tells more than as many passes as tokens would draft.
        """
        tree = self._of_context().known(self._known_tokens).limited(_MOST_READ)
        probs = model.read(text, tree)[:, : self._known_tokens]
        with self._timed():
            self.session.suggest(*suggestion(probs, tree))
        self._tree = None
        return self.branches()

    def draft(self, text: Text, most: int) -> Draft:
        on_trial = text.tokens[self._context_length :]
        if most <= 0 or not self._knows(on_trial):
            return Draft(EMPTY_TREE)
        if on_trial:
            with self._timed():
                tree = self.session.draft_after(on_trial, self._max_nodes_up)
        else:
            tree = self._of_context()
        tree = tree.limited(self._max_nodes_up, most)
        return self._handed_up(known_part(tree, self._known_tokens))

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

    def _handed_up(self, tree: TokenTree) -> Draft:
        self.stats.num_drafted += len(tree)
        return Draft(tree, stats=self.stats)


class ModelLevel(Level):
    """A model that drafts by verifying the level beneath; with none beneath, token by token.

    Each pass takes a draft of the level beneath, and the walk down it chooses tokens of this
    model's own distribution, whatever the draft was. So what is handed up is as if this model had
    drafted alone, and the level above may accept it by what this model says.

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
            if text.finished or self._is_unsure(new):
                break
        text.cut(start)
        self.stats.num_drafted += len(chosen)
        return Draft.of_chain(chosen, text.samples, self.threshold, self.stats)

    def read(self, text: Text, tree: TokenTree) -> torch.Tensor:
        """What this model holds of a tree: of each next token, `(1 + num_nodes, vocab_size)`."""
        with self._timed():
            logits = self._model.run(text.tokens, tree)
            self._model.commit([])
        self.stats.num_forwards += 1
        return torch.softmax(logits.float(), -1)

    def _verify(self, text: Text, most: int) -> list[Drawn]:
        """Appends to the text what this model makes of a draft of `most` tokens, and one more."""
        draft = Draft(EMPTY_TREE) if self.beneath is None else self.beneath.draft(text, most)
        with self._timed():
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
