"""Token sequence of a request as its levels see it, and their choice of a next token."""

from collections.abc import Iterable

import torch
from transformers import LogitsProcessorList

from specds.drafters.session import Proposal, RequestRules
from specds.transformers.accept.draws import accept_or_redraw, draw
from specds.transformers.accept.on_host import is_stateless


class LevelContext:
    """Context of a request, followed by the speculative tokens of its levels.

    Levels choose tokens as the target does, but skip its stateful processors, which would see
    tokens that the target never sees. Without rules, they choose greedily.
    """

    def __init__(self, token_ids: Iterable[int], rules: RequestRules | None = None) -> None:
        self.tokens = [int(token) for token in token_ids]
        self._rules = rules
        self._processors = LogitsProcessorList(
            processor
            for processor in (rules.logits_processor if rules else ())
            if is_stateless(processor)
        )
        self._buffer = torch.empty((1, 0), dtype=torch.int64)
        self._num_stored = 0

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def tokens_left(self) -> int | None:
        """Return the maximum length of a draft, or None if it has no limit."""
        # The pass that verifies a draft generates one token more.
        return None if self._rules is None else self._rules.max_length - len(self) - 1

    @property
    def finished(self) -> bool:
        """Return whether the last token ends the sequence."""
        return self._rules is not None and self.tokens[-1] in self._rules.eos_token_ids

    def emit(self, token: int) -> int:
        self.tokens.append(token)
        return token

    def cut(self, length: int) -> None:
        del self.tokens[length:]
        self._num_stored = min(self._num_stored, length)

    def probs(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the distribution of a level's next token, float32 `(vocab_size,)`."""
        row = logits[None].to(torch.float32, copy=True)
        if self._processors:
            row = self._processors(self._token_ids(row.device), row)  # type: ignore[arg-type]
        return torch.nn.functional.softmax(row[0], dim=-1)

    def choose(self, probs: torch.Tensor, proposal: Proposal | None) -> int:
        """Choose a token of a distribution as the target would."""
        if self._rules is None or not self._rules.do_sample:
            return int(probs.argmax())
        return draw(probs) if proposal is None else accept_or_redraw(probs, proposal)

    @property
    def samples(self) -> bool:
        """Return whether tokens are sampled, so that drafted ones are proposals."""
        return self._rules is not None and self._rules.do_sample

    def _token_ids(self, device: torch.device) -> torch.Tensor:
        length = len(self)
        if self._buffer.device != device or self._buffer.shape[1] < length:
            self._buffer = torch.empty((1, 2 * length), dtype=torch.int64, device=device)
            self._num_stored = 0
        new = self._buffer.new_tensor(self.tokens[self._num_stored :])
        self._buffer[0, self._num_stored : length] = new
        self._num_stored = length
        return self._buffer[:, :length]
