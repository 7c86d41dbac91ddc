"""Streamed text: token by token, colored by the source that drafted it."""

from __future__ import annotations

import signal
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.text import Text

from specds import terminal
from specds.models.render import Spelling

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import PreTrainedTokenizerBase

    from specds.decoding.stats import GenerationStats
    from specds.drafters.step import Step

DRAFTED = "green"
"""The style of a token that was drafted and accepted."""

COLORS = {
    "datastore": "blue",
    "context": "green",
    "memory": "magenta",
    "group": "bright_magenta",
    "recycled": "yellow",
    "predicted_output": "red",
    "bigram": "cyan",
}
"""The style of a token by the source that drafted it, if sources are shown."""


class Writer:
    """Counts the sources of drafted tokens, and writes texts while they are decoded.

    Special tokens are not shown, such as the end of a turn.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        by_source: bool = False,
        is_silent: bool = False,
    ) -> None:
        self.sources: Counter[str] = Counter()
        self._tokenizer, self._spelling = tokenizer, Spelling(tokenizer)
        self._by_source, self._is_silent = by_source, is_silent
        self._hidden = frozenset(tokenizer.all_special_ids)

    def __call__(self, step: Step) -> None:
        self.sources.update(source for source in step.sources if source is not None)
        if self._is_silent:
            return
        text = Text()
        for token, source in zip(step.token_ids, step.sources, strict=True):
            if token not in self._hidden:
                style = None if source is None else self._style(source, DRAFTED)
                text.append(self._spelling.of(token), style)
        terminal.out.print(text, end="", soft_wrap=True)

    def end(self) -> None:
        terminal.out.print(self._spelling.of(None), soft_wrap=True)
        self._spelling = Spelling(self._tokenizer)

    def summary(self, stats: GenerationStats) -> Text:
        """Return the final line: speed, and sources of drafted tokens."""
        text = Text(str(stats), "dim")
        for number, (source, count) in enumerate(self.sources.most_common()):
            text.append(", " if number else "; drafted by ", "dim")
            text.append(f"{source} {count:,}", self._style(source, "dim"))
        return text

    def _style(self, source: str, otherwise: str) -> str:
        return COLORS.get(source, DRAFTED) if self._by_source else otherwise


class Interrupt:
    """A stopping criterion that ends a text when Ctrl-C is pressed."""

    rowwise = True

    def __init__(self) -> None:
        self.pressed = False

    def __call__(self, *_: Any, **__: Any) -> bool:
        return self.pressed


@contextmanager
def stopped_by_interrupt() -> Iterator[Interrupt]:
    """End the text after its next token at the first Ctrl-C; restore the handler for the second."""
    interrupt = Interrupt()
    before = signal.getsignal(signal.SIGINT)

    def press(*_: Any) -> None:
        interrupt.pressed = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, press)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
