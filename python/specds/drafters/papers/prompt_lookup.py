"""Prompt lookup: drafts from the first earlier occurrence of the end of the context."""

from functools import partial

from specds._core import DEFAULTS, prompt_lookup_session
from specds.drafters.session import CoreDrafter


class PromptLookupDrafter(CoreDrafter):
    """Prompt lookup decoding (Saxena 2023), with the published defaults.

    It finds the longest suffix of the context that occurred earlier, and drafts at most
    `num_tokens` tokens after its first occurrence, by the rule of transformers 5.23.

    Raises:
        ValueError: A number is out of range.
    """

    def __init__(
        self,
        max_match: int = DEFAULTS["prompt_lookup"]["max_match"],
        num_tokens: int = DEFAULTS["prompt_lookup"]["num_tokens"],
    ) -> None:
        start = partial(prompt_lookup_session, max_match=max_match, num_tokens=num_tokens)
        super().__init__(start, vocab_size=None, max_nodes=num_tokens)
