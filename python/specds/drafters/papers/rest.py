"""REST: drafts from the longest match in a datastore."""

from dataclasses import asdict, dataclass
from functools import partial
from os import PathLike

from specds._core import DEFAULTS, Datastore, rest_session
from specds.drafters.session import CoreDrafter, opened


@dataclass(frozen=True)
class RestConfig:
    """Limits of lookups; the defaults are those of the REST paper, except for samples.

    Attributes:
        max_match: Maximum length of the suffix that is looked up (n_max).
        min_match: Minimum length of a match.
        continuation: Tokens after each occurrence of the match (m).
        max_samples: Occurrences to read, evenly spread over all of them; the paper's program reads
            the first 5,000 in lexicographic order.
        max_nodes: Nodes of a draft for requests with `auto` (c).
    """

    max_match: int = DEFAULTS["rest"]["max_match"]
    min_match: int = DEFAULTS["rest"]["min_match"]
    continuation: int = DEFAULTS["rest"]["continuation"]
    max_samples: int = DEFAULTS["rest"]["max_samples"]
    max_nodes: int | None = None


class RestDrafter(CoreDrafter):
    """Retrieval-based drafter as in REST (He et al. 2024), Algorithm 1.

    It looks up the longest suffix of the context in a datastore and drafts the most frequent
    continuations as a tree.

    Raises:
        FileNotFoundError: The path does not exist.
        FormatError: The datastore cannot be read.
    """

    def __init__(
        self, datastore: Datastore | str | PathLike[str], config: RestConfig | None = None
    ) -> None:
        self.datastore, self.config = opened(datastore), config or RestConfig()
        limits = asdict(self.config)
        max_nodes = limits.pop("max_nodes")
        start = partial(rest_session, self.datastore, **limits)
        super().__init__(start, self.datastore.vocab_size, max_nodes)
