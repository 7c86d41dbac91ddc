"""A step of a row: the draft, the accepted nodes, and their sources."""

from dataclasses import dataclass

from specds._core import SOURCES, TokenTree


@dataclass(frozen=True)
class Step:
    """A draft and its outcome.

    Attributes:
        tree: What was verified; may be empty.
        path: Its accepted nodes, from the root on.
        token_ids: The emitted tokens: those of the path, then the target's own.
    """

    tree: TokenTree
    path: list[int]
    token_ids: list[int]

    @property
    def sources(self) -> list[str | None]:
        """The source of each emitted token; None: the target itself."""
        drafted = [SOURCES[source] for source in self.tree.sources[self.path].tolist()]
        return [*drafted, *[None] * (len(self.token_ids) - len(drafted))]
