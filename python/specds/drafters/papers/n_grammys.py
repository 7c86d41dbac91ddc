"""N-Grammys: drafts from the model's own bigrams and the request's own text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias

from specds._core import DEFAULTS, ModelTables, n_grammys_session
from specds.drafters.session import CoreDrafter, tables_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel


Strategy: TypeAlias = Literal["mixed", "context", "bigram", "extended-bigram", "unigram"]


@dataclass(frozen=True)
class NGrammysConfig:
    """Configuration of N-Grammys; the defaults are the paper's.

    Attributes:
        k: Rows of a draft; the paper goes up to 25.
        w: Tokens of a row; the paper goes up to 14.
        q: Tokens at the end of the context that must match earlier ones.
        strategy: ``mixed`` takes the rows that the context gives, and the rest from the extended
            bigram. ``context``, ``extended-bigram``, ``bigram`` and ``unigram`` take all rows from
            one source; the last two have one token a row.
    """

    k: int = DEFAULTS["n_grammys"]["k"]
    w: int = DEFAULTS["n_grammys"]["w"]
    q: int = DEFAULTS["n_grammys"]["q"]
    strategy: Strategy = DEFAULTS["n_grammys"]["strategy"]

    @property
    def max_nodes(self) -> int:
        """Return the maximum nodes of k rows."""
        return self.k if self.strategy in ("bigram", "unigram") else self.k * self.w


class NGrammysDrafter(CoreDrafter):
    """Learning-free drafter as in the N-Grammys paper (Stewart et al. 2024), sections 4.1 to 4.3.

    Its rows form a tree, which `specds.papers.PathRows` verifies row by row as in the paper.

    Args:
        tables: The target model, or its tables; may be None for the strategy ``context``.

    Raises:
        ValueError: The strategy needs a model and there is none, or a number is out of range.
    """

    def __init__(
        self, tables: PreTrainedModel | ModelTables | None, config: NGrammysConfig | None = None
    ) -> None:
        self.config = config = config or NGrammysConfig()
        if tables is not None:
            tables = tables_of(tables, max(25, config.k))
        start = partial(n_grammys_session, tables, **asdict(config))
        vocab_size = None if tables is None else tables.vocab_size
        super().__init__(start, vocab_size, config.max_nodes)
