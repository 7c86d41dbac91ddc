"""How is text shown as it comes: token by token, coloured by what drafted it."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.text import Text

from specds import terminal
from specds.readable import Spelling

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from transformers import PreTrainedTokenizerBase

    from specds.drafters.watched import Step
    from specds.stats import GenerationStats

DRAFTED = "green"
"""The style of a token that was drafted and accepted."""

COLOURS = {
    "datastore": "blue",
    "context": "green",
    "memory": "magenta",
    "group": "bright_magenta",
    "recycled": "yellow",
    "predicted": "red",
    "bigram": "cyan",
}
"""The style of a token by the source that drafted it, where they are told apart."""


class Writer:
    """Writes the text of a request to the terminal while it is decoded.

    Args:
        tokenizer: Of the tokens.
        by_source: Whether each source has a colour of its own.
        hidden: Tokens that are not shown, such as the end of a turn.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        by_source: bool = False,
        hidden: Sequence[int] = (),
    ) -> None:
        self._spelling = Spelling(tokenizer)
        self._by_source = by_source
        self._hidden = frozenset(hidden)

    def __call__(self, step: Step) -> None:
        """Writes what a step emitted."""
        text = Text()
        for token, source in zip(step.token_ids, step.sources, strict=True):
            if token not in self._hidden:
                text.append(terminal.visible(self._spelling.of(token)), self._style(source))
        terminal.out.print(text, end="", soft_wrap=True)

    def end(self) -> None:
        """Ends the line."""
        terminal.out.print(terminal.visible(self._spelling.of(None)), soft_wrap=True)

    def _style(self, source: str | None) -> str | None:
        if source is None:
            return None
        return COLOURS.get(source, DRAFTED) if self._by_source else DRAFTED


def coloured(
    tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int], drafted: Sequence[bool]
) -> Text:
    """The text of tokens, green where a token was drafted and accepted."""
    spelling, text = Spelling(tokenizer), Text()
    for token, was_drafted in zip(token_ids, drafted, strict=True):
        text.append(terminal.visible(spelling.of(token)), DRAFTED if was_drafted else None)
    return text.append(terminal.visible(spelling.of(None)))


def summary(stats: GenerationStats, sources: Mapping[str, int], *, by_source: bool) -> Text:
    """The line at the end: how fast, and what the drafts came from."""
    text = Text(str(stats), "dim")
    if sources:
        text.append("; drafted by ", "dim")
        for number, (source, count) in enumerate(sources.items()):
            style = COLOURS.get(source, DRAFTED) if by_source else "dim"
            text.append(", " if number else "", "dim").append(f"{source} {count:,}", style)
    if stats.measure_s > max(0.1 * stats.total_s, 0.1):
        text.append(f"; {stats.measure_s:.1f} s of it timed the model, once", "dim")
    return text


class Interrupt:
    """Whether Ctrl-C was pressed: a criterion that ends a text as it is."""

    rowwise = True

    def __init__(self) -> None:
        self.pressed = False

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        """As of any stopping criterion of transformers."""
        import torch

        return torch.full((len(input_ids),), self.pressed, device=input_ids.device)


@contextmanager
def stopped_by_interrupt() -> Iterator[Interrupt]:
    """Has the first Ctrl-C end the text behind its next token; the second one is as ever."""
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
