"""Prompt lookup: drafts what followed the end of the context when it first came."""

from __future__ import annotations

from specds._core import DraftSession, prompt_lookup_session
from specds.drafters.session import CoreDrafter


class PromptLookupDrafter(CoreDrafter):
    """Prompt lookup decoding (Saxena 2023), with the published defaults.

    The longest suffix of the context that came before in it is found, and the tokens after its
    first occurrence are drafted, fewer than `num_tokens` where the context ends: the rule of
    transformers 5.23. (The first published program asked for `num_tokens` of them, and else for a
    shorter match.) Needs no datastore and no model.

    Raises:
        ValueError: A number is out of range.
    """

    def __init__(self, max_match: int = 3, num_tokens: int = 10) -> None:
        self.max_match, self.num_tokens = max_match, num_tokens
        self.max_nodes = num_tokens
        self._start()  # refuses numbers that no request could use

    def _start(self) -> DraftSession:
        return prompt_lookup_session(max_match=self.max_match, num_tokens=self.num_tokens)
