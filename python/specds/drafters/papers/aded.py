"""ADED: drafts from adaptive tri-grams by Monte Carlo tree search."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any, Literal

from specds._core import DEFAULTS, AdaptiveTrigrams, Datastore, DraftSession, Trigrams, aded_session
from specds.drafters.session import CoreDrafter, opened


@dataclass(frozen=True)
class AdedConfig:
    """Configuration of ADED; the defaults are the paper's where it states them.

    Attributes:
        search: ``mcts``, or the ablation ``greedy``, which takes the most likely word each time.
        searches: Iterations of a search (s).
        depth: Tokens of a sentence (l).
        candidates: Sentences of a draft (n).
        c1: Weight of exploration.
        c2: Number of visits after which exploration grows.
        adaptive: Whether the tri-grams learn from the request (Algorithm 2).
        across_requests: Whether requests learn from each other; drafts of concurrent requests then
            depend on their order.
        increment: Probability added to an observed tri-gram, and the initial one of a new tri-gram.
            The paper does not state it.
        max_prob: Maximum probability of an observed tri-gram. The paper does not state it.
    """

    search: Literal["mcts", "greedy"] = DEFAULTS["aded"]["search"]
    searches: int = DEFAULTS["aded"]["searches"]
    depth: int = DEFAULTS["aded"]["depth"]
    candidates: int = DEFAULTS["aded"]["candidates"]
    c1: float = DEFAULTS["aded"]["c1"]
    c2: float = DEFAULTS["aded"]["c2"]
    adaptive: bool = DEFAULTS["aded"]["adaptive"]
    across_requests: bool = False
    increment: float = DEFAULTS["aded"]["increment"]
    max_prob: float = DEFAULTS["aded"]["max_prob"]
    seed: int = DEFAULTS["aded"]["seed"]

    @property
    def max_nodes(self) -> int:
        """Return the nodes of the paper's draft: n sentences of l tokens, or one if greedy."""
        return self.depth * (1 if self.search == "greedy" else self.candidates)


class AdedDrafter(CoreDrafter):
    """Drafter of adaptive tri-grams as in ADED (Liu et al. 2024).

    Each tri-gram of the request raises the probability of its third word after the other two. Monte
    Carlo tree search finds likely sentences.

    Args:
        source: Tri-grams, or the datastore in which to count them.
        order: Tokens of an n-gram: 3, or 2 or 4 in the paper's ablations.
        progress: Called while tri-grams are counted.

    Raises:
        FileNotFoundError: The path does not exist.
        FormatError: The datastore cannot be read.
        ValueError: The tri-grams have another order, or the configuration is invalid.
    """

    def __init__(
        self,
        source: Trigrams | Datastore | str | PathLike[str],
        config: AdedConfig | None = None,
        *,
        order: int = DEFAULTS["trigrams"]["order"],
        progress: Callable[[str, int, int], Any] | None = None,
    ) -> None:
        if not isinstance(source, Trigrams):
            source = Trigrams.build(opened(source), order=order, progress=progress)
        if source.order != order:
            raise ValueError(
                f"n-grams of order {order} are needed, these are of order {source.order}: count "
                f"them with `Trigrams.build(datastore, order={order})`"
            )
        self.trigrams, self.config = source, config or AdedConfig()
        options = asdict(self.config)
        shared = AdaptiveTrigrams(source) if options.pop("across_requests") else None

        def start() -> DraftSession:
            return aded_session(AdaptiveTrigrams(source) if shared is None else shared, **options)

        super().__init__(start, source.vocab_size, self.config.max_nodes)
