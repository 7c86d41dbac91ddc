"""Decode step of one sequence: the draft, the accepted nodes, and their sources."""

from dataclasses import dataclass

from specds._core import SOURCES, TokenTree


@dataclass(frozen=True)
class Step:
    """Draft and its outcome.

    Attributes:
        tree: The verified tree, which may be empty.
        path: Accepted nodes, from the root.
        token_ids: New tokens: those of the path, then the target's own.
    """

    tree: TokenTree
    path: list[int]
    token_ids: list[int]

    @property
    def sources(self) -> list[str | None]:
        """Return the source of each new token; None for the target itself."""
        drafted = [SOURCES[source] for source in self.tree.sources[self.path].tolist()]
        return [*drafted, *[None] * (len(self.token_ids) - len(drafted))]
