"""ADED: drafts from tri-grams that adapt to the text, by Monte Carlo tree search."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any, Literal

from specds._core import DEFAULTS, AdaptiveTrigrams, Datastore, DraftSession, Trigrams, aded_session
from specds.drafters.session import CoreDrafter, opened


@dataclass(frozen=True)
class AdedConfig:
    """How ADED drafts and learns; the defaults are the paper's, where it states them.

    Attributes:
        search: ``mcts``, or the ablation ``greedy``, which takes the likeliest word at each place.
        searches: Iterations of a search (s).
        depth: Tokens of a sentence (l).
        candidates: Sentences of a draft (n).
        c1: How much a search explores.
        c2: How late it explores more.
        adaptive: Whether the tri-grams learn from the request (Algorithm 2).
        across_requests: Whether requests learn from each other; drafts of concurrent requests then
            depend on their order.
        increment: What an observed tri-gram gains, and the first probability of a new one. The
            paper does not state it.
        max_prob: The most that an observed tri-gram can reach. The paper does not state it.
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
        """The nodes of the paper's draft: n sentences of l tokens, or one if greedy."""
        return self.depth * (1 if self.search == "greedy" else self.candidates)


class AdedDrafter(CoreDrafter):
    """Drafting by tri-grams as in ADED (Liu et al. 2024).

    Each tri-gram of the request makes its third word likelier after the other two. Monte Carlo tree
    search finds likely sentences.

    Args:
        source: Tri-grams, or the datastore to count them in.
        order: The tokens of an n-gram: 3, or 2 or 4 in the paper's ablations.
        progress: Called while they are counted.

    Raises:
        FileNotFoundError: There is nothing at the path.
        FormatError: What is there cannot be read.
        ValueError: The tri-grams are of another order, or the configuration is not usable.
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
