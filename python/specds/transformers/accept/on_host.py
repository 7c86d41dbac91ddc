"""Choice of tokens by the processors of transformers, and what follows each emitted token."""

import copy
import sys
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import LogitsProcessorList, StoppingCriteriaList
from transformers.generation import logits_process
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

from specds.constraints import processor_of_row
from specds.constraints.processor import last_grammar
from specds.drafters.session import Proposal
from specds.transformers.accept.draws import Noise, accept_or_redraw, draw, draw_by


def _host_stop(criteria: StoppingCriteriaList) -> tuple[int, frozenset[int]] | None:
    """Return the length and the tokens that end a text, or None if other criteria can end it.

    Comparing with these takes 0.1 us a token; calling the criteria takes 14 us.
    """
    max_length, eos = sys.maxsize, frozenset[int]()
    for criterion in criteria:
        if type(criterion) is EosTokenCriteria:
            eos |= {*criterion.eos_token_id.flatten().tolist()}
        elif type(criterion) is MaxLengthCriteria and (
            criterion.max_length <= (criterion.max_position_embeddings or sys.maxsize)
        ):
            max_length = min(max_length, criterion.max_length)
        else:  # such a criterion must be called, as one that warns of long texts
            return None
    return max_length, eos


class Emitter:
    """Append, test and stream each emitted token, as `generate` of transformers does.

    Args:
        token_ids: int64 `(1, prompt_length)`, the prompt.
        stopping_criteria: Decide after each token whether the sequence is finished.
        streamer: Receives each token as int64 `(1,)` on the CPU.
        scores: The list of a `Sampler`, passed to the criteria.

    Attributes:
        emitted: The emitted tokens.
        finished: Whether a criterion has ended the sequence.
    """

    def __init__(
        self,
        token_ids: Tensor,
        stopping_criteria: StoppingCriteriaList,
        streamer: Any = None,
        scores: list[Tensor] | None = None,
    ) -> None:
        self.emitted: list[int] = []
        self.finished = False
        self._prompt_length = token_ids.shape[1]
        self._tokens = token_ids
        self._stopping_criteria = stopping_criteria
        self._host_stop = _host_stop(stopping_criteria)
        self._streamer = streamer
        self._scores = scores

    @property
    def length(self) -> int:
        """Number of tokens, prompt included."""
        return self._prompt_length + len(self.emitted)

    @property
    def token_ids(self) -> Tensor:
        """All tokens, int64 `(1, length)`; a tensor that was returned does not change."""
        new = self.emitted[self._tokens.shape[1] - self._prompt_length :]
        if new:
            self._tokens = torch.cat([self._tokens, self._tokens.new_tensor([new])], dim=1)
        return self._tokens

    def emit(self, token: int) -> int:
        self.emitted.append(token)
        if self._host_stop is not None:
            max_length, eos = self._host_stop
            self.finished = token in eos or self.length >= max_length
        else:
            scores = None if self._scores is None else tuple(self._scores)
            self.finished = bool(self._stopping_criteria(self.token_ids, scores))
        if self._streamer is not None:
            self._streamer.put(torch.tensor([token]))
        return token


# Processors that depend on one row of scores alone, and do not write to it.
_ROWWISE = {
    getattr(logits_process, f"{name}LogitsWarper")
    for name in ("MinP", "Temperature", "TopK", "TopP", "Typical")
}


class Sampler:
    """Choose a next token as `generate` of transformers does: by the processed scores.

    Args:
        logits_processor: Called for each token, in this order.
        do_sample: Draw a sample of the processed scores; otherwise take their argmax.
        keep_scores: Store the processed scores.
        keep_logits: Store the logits.

    Attributes:
        scores: With `keep_scores`, the processed scores of each call.
        logits: With `keep_logits`, the logits of each call.
        is_argmax: Whether a call only computes the argmax of the logits.
        logits_only: Whether choices depend only on logits and noise, so that `sample_all` can
            make them.
    """

    def __init__(
        self,
        logits_processor: LogitsProcessorList,
        *,
        do_sample: bool,
        keep_scores: bool = False,
        keep_logits: bool = False,
    ) -> None:
        self.logits_processor = logits_processor
        self._do_sample = do_sample
        self._noise: tuple[Noise, int] | None = None
        self._is_rowwise = all(type(processor) in _ROWWISE for processor in logits_processor)
        self.scores: list[Tensor] | None = [] if keep_scores else None
        self.logits: list[Tensor] | None = [] if keep_logits else None
        self._keeps = keep_scores or keep_logits
        self.is_argmax = not (do_sample or len(logits_processor) or self._keeps)
        is_greedy = not (do_sample or self._keeps)
        self._grammar = last_grammar(logits_processor) if is_greedy else None
        self._others = LogitsProcessorList(logits_processor[:-1])
        self.logits_only = self.is_argmax or (do_sample and self._is_rowwise and not self._keeps)

    def draw_by(self, noise: Noise, row: int) -> None:
        self._noise = noise, row

    def __call__(
        self,
        emitter: Emitter,
        logits: Tensor | NDArray[np.float32],
        proposal: Proposal | None = None,
    ) -> int:
        """Return the token after those of the emitter, given `logits`, `(vocab_size,)`."""
        if isinstance(logits, np.ndarray):
            logits = torch.from_numpy(logits)
        if self.is_argmax:
            # For 128,256 numbers numpy takes a tenth of torch's time.
            row = logits.float()
            return int((row.numpy() if row.device.type == "cpu" else row).argmax())
        token_ids = emitter.token_ids
        # In float32 and on the device of `token_ids`, as transformers does, so that ties and
        # random numbers are those of the baseline.
        copy = self._keeps or not self._is_rowwise
        scores = logits = logits[None].to(token_ids.device, torch.float32, copy=copy)
        if self._grammar is not None:
            scores = self._others(token_ids, logits)  # type: ignore[arg-type]
            top = partial(int, scores[0].argmax())
            token = self._grammar.known_token(token_ids, scores, top)
            return int(self._grammar(token_ids, scores).argmax()) if token is None else token
        if self._is_rowwise:
            # The list inspects each processor's signature, which takes 4 times its arithmetic.
            for processor in self.logits_processor:
                scores = processor(token_ids, scores)
        else:
            scores = self.logits_processor(token_ids, logits)  # type: ignore[arg-type]
        if self.scores is not None:
            self.scores.append(scores)
        if self.logits is not None:
            self.logits.append(logits)
        if self._do_sample:
            probs = torch.nn.functional.softmax(scores, dim=-1)[0]
            if proposal is not None:
                return accept_or_redraw(probs, proposal)
            if self._noise is None:
                return draw(probs)
            noise, number = self._noise
            return draw_by(probs, noise.draw_at(len(emitter.emitted))[number])
        return int(scores.argmax(dim=-1))

    def sample_all(self, logits: Tensor, depths: Tensor, noise: Tensor | None) -> Tensor:
        """Return the choices at all places, int64 `(num_rows, width)`.

        Args:
            logits: `(num_rows, width, vocab_size)`.
            depths: int64 `(num_rows, width)`, as in `Inputs`.
            noise: The result of `Noise.draws_for`, without the rows that are padding; None for
                the argmax.
        """
        if noise is None:
            return logits.argmax(dim=-1)
        scores = logits.flatten(0, 1).float()
        nothing = torch.empty((len(scores), 0), dtype=torch.int64, device=scores.device)
        probs = self.logits_processor(nothing, scores).softmax(dim=-1)  # type: ignore[arg-type]
        rows = torch.arange(len(depths), device=depths.device).clamp(max=len(noise) - 1)
        # The arithmetic of `multinomial`, which would wait for the device to check its arguments.
        return (probs.view_as(logits) / noise[rows[:, None], depths]).argmax(dim=-1)


def processors_of_row(
    processors: LogitsProcessorList, row: int, num_rows: int
) -> LogitsProcessorList:
    made = LogitsProcessorList()
    for processor in processors:
        ignored = getattr(processor, "prompt_ignore_length", None)
        if isinstance(ignored, Tensor):
            processor = copy.copy(processor)
            processor.prompt_ignore_length = ignored[row : row + 1]
        made.append(processor_of_row(processor, row, num_rows))
    return made


_STATEFUL = (
    logits_process.EncoderNoRepeatNGramLogitsProcessor,
    logits_process.EncoderRepetitionPenaltyLogitsProcessor,
    logits_process.PrefixConstrainedLogitsProcessor,
    logits_process.SynthIDTextWatermarkLogitsProcessor,
    logits_process.UnbatchedClassifierFreeGuidanceLogitsProcessor,
)


def is_stateless(processor: object) -> bool:
    """Return whether this is a processor of transformers that handles each row by itself."""
    is_known = type(processor).__module__ == logits_process.__name__
    return is_known and not isinstance(processor, _STATEFUL)
