"""Streamed text: token by token, colored by the source that drafted it."""

from __future__ import annotations

import signal
from collections import Counter
from contextlib import ExitStack, contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.text import Text

from specds import terminal
from specds.models.render import Spelling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transformers import PreTrainedTokenizerBase

    from specds.drafters.step import Step
    from specds.generation.stats import GenerationStats

DRAFTED = "green"
"""The style of a token that was drafted and accepted."""

_SHOWN_AFTER_S = 2.0
_ENDS_WITHIN_S = 1.0

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

    Args:
        tokenizer: Its tokenizer.
        by_source: Colors drafted tokens by their source.
        is_silent: Writes nothing.
        wraps: Breaks lines at spaces, except in fenced code; for prose on a terminal.

    Attributes:
        num_hidden: The number of characters at the beginning that are not shown.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        by_source: bool = False,
        is_silent: bool = False,
        wraps: bool = False,
    ) -> None:
        self.sources: Counter[str] = Counter()
        self.num_hidden = 0
        self._tokenizer, self._spelling = tokenizer, Spelling(tokenizer)
        self._by_source, self._is_silent = by_source, is_silent
        self._hidden = frozenset(tokenizer.all_special_ids)
        self._wraps, self._line, self._is_code = wraps, "", False

    def __call__(self, step: Step) -> None:
        self.sources.update(source for source in step.sources if source is not None)
        if self._is_silent:
            return
        text = Text()
        for token, source in zip(step.token_ids, step.sources, strict=True):
            if token not in self._hidden:
                style = None if source is None else self._style(source, DRAFTED)
                spelled = self._spelling.of(token)
                text.append(self._wrapped(spelled[self.num_hidden :]), style)
                self.num_hidden = max(self.num_hidden - len(spelled), 0)
        terminal.out.print(text, end="", soft_wrap=True)

    def end(self) -> None:
        terminal.out.print(self._spelling.of(None), soft_wrap=True)
        self._spelling = Spelling(self._tokenizer)
        self._line, self._is_code = "", False

    def _wrapped(self, part: str) -> str:
        """Return a part of the text, on a new line if it is a word that does not fit."""
        if not self._wraps or not part:
            return part
        width = terminal.out.width
        begins_word = part.startswith(" ") and part.strip() and self._line and not self._is_code
        if begins_word and cell_len(self._line) + cell_len(part.rstrip()) > width:
            part = "\n" + part[1:]
        *ended, rest = (self._line + part).split("\n")
        fences = sum(line.lstrip().startswith("```") for line in ended)
        self._is_code ^= fences % 2 == 1
        # The terminal breaks a longer line itself.
        self._line = rest[-(cell_len(rest) % width) :] if cell_len(rest) > width else rest
        return part

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
    """A stopping criterion that ends a text when Ctrl-C is pressed, and shows how a prompt is read.

    Attributes:
        pressed_at: When Ctrl-C was first pressed.
        is_reading: Whether a prompt is being read, of which nothing is kept.
    """

    rowwise = True

    def __init__(self) -> None:
        self.is_reading = False
        self.pressed_at: float | None = None
        self._started = 0.0
        self._bar: Callable[[int, int], None] | None = None
        self._shown = ExitStack()

    def __call__(self, *_: Any, **__: Any) -> bool:
        return self.pressed

    @property
    def pressed(self) -> bool:
        return self.pressed_at is not None

    def on_prefill(self, num_read: int, num_tokens: int) -> None:
        """Show a bar on standard error if a prompt takes longer than two seconds."""
        self.is_reading = num_read < num_tokens
        if not self.is_reading:
            self.end()
            return
        if num_read == 0 and self._bar is None:
            self._started = monotonic()
        if self._bar is None and monotonic() - self._started >= _SHOWN_AFTER_S:
            from specds.terminal.progress import prompt_progress

            self._bar = self._shown.enter_context(prompt_progress())
        if self._bar is not None:
            self._bar(num_read, num_tokens)

    def end(self) -> None:
        """Remove the bar."""
        self._shown.close()
        self._bar = None


@contextmanager
def stopped_by_interrupt() -> Iterator[Interrupt]:
    """End the text after its next token at Ctrl-C, which raises KeyboardInterrupt in a prompt.

    A text that has not ended a second later is ended by the next Ctrl-C, by KeyboardInterrupt.
    """
    interrupt = Interrupt()
    before = signal.getsignal(signal.SIGINT)

    def press(*_: Any) -> None:
        now = monotonic()
        is_late = interrupt.pressed_at is not None and now - interrupt.pressed_at > _ENDS_WITHIN_S
        interrupt.pressed_at = interrupt.pressed_at or now
        if interrupt.is_reading or is_late:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, press)
    try:
        yield interrupt
    finally:
        interrupt.end()
        signal.signal(signal.SIGINT, before)
