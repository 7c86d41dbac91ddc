"""What has been written so far, tokens on trial included, and what may come next."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from transformers import LogitsProcessorList
from transformers.generation import logits_process

from specds.accept.draws import accept_or_redraw, draw
from specds.drafters.session import Proposal, RequestRules

# Processors without a state: they may be asked about tokens that the target will never see. Drafts
# go without the target's other processors: they may come from any known distribution.
_SHARED = frozenset(
    getattr(logits_process, name)
    for name in (
        "EpsilonLogitsWarper",
        "EtaLogitsWarper",
        "MinLengthLogitsProcessor",
        "MinNewTokensLengthLogitsProcessor",
        "MinPLogitsWarper",
        "NoBadWordsLogitsProcessor",
        "NoRepeatNGramLogitsProcessor",
        "RepetitionPenaltyLogitsProcessor",
        "SequenceBiasLogitsProcessor",
        "SuppressTokensLogitsProcessor",
        "TemperatureLogitsWarper",
        "TopKLogitsWarper",
        "TopPLogitsWarper",
        "TypicalLogitsWarper",
    )
)


class Text:
    """The tokens of a request as its levels see them: the context, then tokens on trial.

    Without rules, tokens are chosen greedily.
    """

    def __init__(self, token_ids: Iterable[int], rules: RequestRules | None = None) -> None:
        self.tokens = [int(token) for token in token_ids]
        self._rules = rules
        self._processors = LogitsProcessorList(
            processor
            for processor in (rules.logits_processor if rules else ())
            if type(processor) in _SHARED
        )

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def tokens_left(self) -> int | None:
        """The most tokens of a draft that the target may still emit; None: no limit."""
        # The pass that verifies a draft gives one token more.
        return None if self._rules is None else self._rules.max_length - len(self) - 1

    @property
    def finished(self) -> bool:
        """Whether the text ends with its last token."""
        return self._rules is not None and self.tokens[-1] in self._rules.eos_token_ids

    def emit(self, token: int) -> int:
        self.tokens.append(token)
        return token

    def probs(self, logits: torch.Tensor) -> torch.Tensor:
        """The distribution of the next token, float32, by a level's own logits; `(vocab_size,)`."""
        row = logits[None].to(torch.float32, copy=True)
        if self._processors:
            ids = torch.tensor([self.tokens], device=row.device)
            row = self._processors(ids, row)  # type: ignore[arg-type]
        return torch.nn.functional.softmax(row[0], dim=-1)

    def choose(self, probs: torch.Tensor, proposal: Proposal | None) -> int:
        """A token of a distribution, chosen as the target chooses."""
        if self._rules is None or not self._rules.do_sample:
            return int(probs.argmax())
        return draw(probs) if proposal is None else accept_or_redraw(probs, proposal)

    @property
    def samples(self) -> bool:
        """Whether tokens are sampled, so that drafted ones are proposals."""
        return self._rules is not None and self._rules.do_sample
