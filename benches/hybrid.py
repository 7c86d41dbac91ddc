"""Recorded answers forced through a hybrid of real layer shapes with random weights, on a CPU.

The model has 24 layers of width 1,024, three of four by the gated delta rule. A logits processor
makes it emit the recorded answer, so drafts are accepted as the recorded model would accept them,
and every forward pass is the real arithmetic. The CPU seconds of `model.generate` and of
`specds.generate` are measured request by request in turn.

    PYTHONPATH=benches python -m hybrid TOKENIZER ANSWERS.jsonl... [--requests 4 --tokens 100]
"""

from pathlib import Path
from time import process_time
from typing import Annotated

import numpy as np
import torch
import transformers
import typer
from transformers import AutoModelForCausalLM, LogitsProcessor, Qwen3_5TextConfig

from specds import FusedDrafter
from specds.bench.harness import tokenizer_of
from specds.bench.transcripts import read_transcripts
from specds.generation import generate
from specds.models.tokenization import vocab_size

_LONGEST_PROMPT = 1500


def hybrid(num_tokens: int, dtype: torch.dtype) -> transformers.PreTrainedModel:
    """Return the random model, of the shapes of Qwen3.5-0.8B with another vocabulary."""
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256}
    heads |= {"linear_num_key_heads": 16, "linear_num_value_heads": 16}
    heads |= {"linear_key_head_dim": 128, "linear_value_head_dim": 128}
    shape = {"hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 24}
    shape |= {"full_attention_interval": 4, "vocab_size": num_tokens, "tie_word_embeddings": True}
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(Qwen3_5TextConfig(**shape, **heads), dtype=dtype).eval()


class Forced(LogitsProcessor):
    """Leave only the token of a text at each position."""

    rowwise = True

    def __init__(self, text: list[int]) -> None:
        self._text = torch.tensor(text)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        forced = torch.full_like(scores, -torch.inf)
        forced[:, self._text[input_ids.shape[1]]] = 0.0
        return forced


def main(
    tokenizer: Annotated[str, typer.Argument(help="a folder or name")],
    answers: Annotated[list[Path], typer.Argument(help="recorded answers")],
    requests: int = 4,
    tokens: int = 100,
    dtype: str = "bfloat16",
    threads: int = 1,
) -> None:
    """Measure each file, and answers of random tokens."""
    torch.set_num_threads(threads)
    _, known = tokenizer_of(tokenizer, [])
    size = vocab_size(known)
    model = hybrid(size, getattr(torch, dtype))
    texts: dict[str, list[tuple[list[int], list[int]]]] = {}
    for path in answers:
        rows = read_transcripts(path, known, size)
        pairs = [(row.prompt_ids.tolist(), row.completion_ids[:tokens].tolist()) for row in rows]
        fitting = [of for of in pairs if len(of[0]) <= _LONGEST_PROMPT and len(of[1]) == tokens]
        texts[path.stem] = fitting[:: max(len(fitting) // requests, 1)][:requests]
    rng = np.random.default_rng(0)
    new = rng.integers(3, size, (requests, 100 + tokens)).tolist()
    texts["random tokens"] = [(row[:100], row[100:]) for row in new]
    settings = {"max_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
    generate(model, torch.tensor([new[0][:64]]), max_new_tokens=9, do_sample=False)  # measures
    for name, pairs in texts.items():
        drafter, seconds = FusedDrafter(), np.zeros((2, len(pairs)))
        passes, fed = 0, 0
        for number, (prompt_ids, answer) in enumerate(pairs):
            ids = torch.tensor([prompt_ids])
            force = {"logits_processor": [Forced([*prompt_ids, *answer])]}
            start = process_time()
            model.generate(ids, attention_mask=torch.ones_like(ids), **force, **settings)
            half = process_time()
            output = generate(model, ids, drafter, **force, **settings)
            seconds[:, number] = half - start, process_time() - half
            assert output.sequences[0].tolist() == [*prompt_ids, *answer]
            passes, fed = passes + output.stats.num_drafts, fed + output.stats.num_fed_tokens
        plain, ours = seconds.sum(axis=1)
        ratios = " ".join(f"{ratio:.2f}" for ratio in seconds[0] / seconds[1])
        print(
            f"{name}: {plain:.0f} s plain, {ours:.0f} s, {plain / ours:.2f}x ({ratios}); "
            f"{(tokens - 1) * len(pairs) / passes:.2f} tokens and {fed / passes:.1f} fed a pass",
            flush=True,
        )


if __name__ == "__main__":
    typer.run(main)
