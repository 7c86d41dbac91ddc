"""Recorded answers forced through a hybrid of real layer shapes with random weights, on a CPU.

The model has 24 layers of width 1,024, three of four by the gated delta rule. A logits processor
makes it emit the recorded answer, so drafts are accepted as the recorded model would accept them,
and every forward pass is the real arithmetic. The CPU seconds of `model.generate` and of
`specds.generate` are measured request by request in turn, after the prompt and with it. The
drafter has seen the requests between those that are measured.

    PYTHONPATH=benches python -m hybrid TOKENIZER ANSWERS.jsonl... [--requests 12 --tokens 100]
"""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import process_time
from typing import Annotated, Any

import numpy as np
import torch
import transformers
import typer
from transformers import AutoModelForCausalLM, LogitsProcessor, Qwen3_5TextConfig

from specds import FusedDrafter
from specds.bench.harness import tokenizer_of
from specds.bench.transcripts import read_transcripts
from specds.bench.turns import in_turns
from specds.generation import generate
from specds.models.tokenization import vocab_size

_LONGEST_PROMPT = 2500

Pair = tuple[list[int], list[int]]


def hybrid(num_tokens: int, dtype: torch.dtype) -> transformers.PreTrainedModel:
    """Return the random model, of the shapes of Qwen3.5-0.8B with another vocabulary."""
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256}
    heads |= {"linear_num_key_heads": 16, "linear_num_value_heads": 16}
    heads |= {"linear_key_head_dim": 128, "linear_value_head_dim": 128}
    shape = {"hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 24}
    shape |= {"full_attention_interval": 4, "vocab_size": num_tokens, "tie_word_embeddings": True}
    torch.manual_seed(0)
    config = Qwen3_5TextConfig(**shape, **heads)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    # Time steps from 0.001 to 0.1, as training begins with: those of transformers forget a token
    # within a few others, by factors that a CPU computes slowly (denormal numbers).
    for name, bias in model.named_parameters():
        if name.endswith("dt_bias"):
            steps = torch.empty(bias.shape).uniform_(math.log(0.001), math.log(0.1)).exp()
            bias.data.copy_(steps.expm1().log())
    return model


class Forced(LogitsProcessor):
    """Leave only the token of a text at each position."""

    rowwise = True

    def __init__(self, text: list[int]) -> None:
        self._text = torch.tensor(text)
        self._read_at = 0.0
        self.answer_s = 0.0

    def timing(self, call: Callable[[], Any]) -> Any:
        """Do a call, and note its CPU seconds after the prompt."""
        result = call()
        self.answer_s = process_time() - self._read_at
        return result

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self._read_at = self._read_at or process_time()
        forced = torch.full_like(scores, -torch.inf)
        forced[:, self._text[input_ids.shape[1]]] = 0.0
        return forced


def main(
    tokenizer: Annotated[str, typer.Argument(help="a folder or name")],
    answers: Annotated[list[Path], typer.Argument(help="recorded answers")],
    requests: int = 12,
    tokens: int = 100,
    dtype: str = "bfloat16",
    threads: int = 1,
) -> None:
    """Measure each file, and answers of random tokens."""
    torch.set_num_threads(threads)
    _, known = tokenizer_of(tokenizer, [])
    size = vocab_size(known)
    model = hybrid(size, getattr(torch, dtype))
    texts: dict[str, tuple[list[Pair], set[int]]] = {}
    for path in answers:
        rows = read_transcripts(path, known, size)
        pairs = [(row.prompt_ids.tolist(), row.completion_ids[:tokens].tolist()) for row in rows]
        long = [len(ids) <= _LONGEST_PROMPT and len(text) == tokens for ids, text in pairs]
        fitting = np.flatnonzero(long).tolist()
        texts[path.stem] = pairs, {*fitting[:: max(len(fitting) // requests, 1)][:requests]}
    rng = np.random.default_rng(0)
    new = rng.integers(3, size, (requests, 100 + tokens)).tolist()
    texts["random tokens"] = [(row[:100], row[100:]) for row in new], {*range(requests)}
    settings = {"max_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
    generate(model, torch.tensor([new[0][:64]]), max_new_tokens=9, do_sample=False)  # measures
    for name, (pairs, measured) in texts.items():
        drafter, seconds, passes, fed = FusedDrafter(), [], 0, 0
        for number, (prompt_ids, answer) in enumerate(pairs):
            if number not in measured:  # served before, so the drafter has seen it
                session = drafter.session(prompt_ids)
                session.observe(answer)
                session.finish()
                continue
            ids = torch.tensor([prompt_ids])
            theirs, ours = (Forced([*prompt_ids, *answer]) for _ in range(2))
            given = {"attention_mask": torch.ones_like(ids), "logits_processor": [theirs]}
            calls = {
                theirs: partial(model.generate, ids, **given, **settings),
                ours: partial(generate, model, ids, drafter, logits_processor=[ours], **settings),
            }
            calls = {forced: partial(forced.timing, call) for forced, call in calls.items()}
            found = in_turns(calls, len(seconds)).items()
            parts = [(of.cpu_seconds - forced.answer_s, forced.answer_s) for forced, of in found]
            seconds.append(np.concatenate(parts))
            output = dict(found)[ours].result
            assert output.sequences[0].tolist() == [*prompt_ids, *answer]
            passes, fed = passes + output.stats.num_drafts, fed + output.stats.num_fed_tokens
        spent = np.array(seconds)
        before, plain, read, drafted = spent.sum(axis=0)
        ratios = " ".join(f"{ratio:.2f}" for ratio in spent[:, 1] / spent[:, 3])
        print(
            f"{name}: {plain:.0f} s plain, {drafted:.0f} s, {plain / drafted:.2f}x ({ratios}), "
            f"{(before + plain) / (read + drafted):.2f}x with the prompts; "
            f"{(tokens - 1) * len(seconds) / passes:.2f} tokens and {fed / passes:.1f} fed a pass",
            flush=True,
        )


if __name__ == "__main__":
    typer.run(main)
