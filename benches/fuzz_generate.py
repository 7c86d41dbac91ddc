"""Random requests by `model.generate` and by specds: every text must be the same.

Families, processors, budgets, ways to verify, batches, stops, drafters and seeds are drawn
for each request, on tiny models with random weights. A text that differs is tried again in float64:
where it is equal there, rounding broke a tie, which is counted apart.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from time import perf_counter

import torch

from models import (
    FAMILIES,
    VOCAB_SIZE,
    mixed_drafter,
    oracle_drafter,
    prompt,
    random_drafter,
    tiny_model,
    wrong_drafter,
)
from specds import FusedDrafter, generate
from specds.drafters import Memory
from specds.verify import UnsupportedModelError

PAD = 1
PROCESSORS = {
    "repetition_penalty": [1.1, 1.6],
    "no_repeat_ngram_size": [2, 3],
    "min_new_tokens": [5, 12],
    "bad_words_ids": [[[3], [7, 9]]],
    "suppress_tokens": [[4, 5, 6]],
    "exponential_decay_length_penalty": [(5, 1.2)],
    "renormalize_logits": [True],
}
WARPERS = {"temperature": [0.7, 3.0], "top_k": [0, 5, 50], "top_p": [0.8, 1.0], "min_p": [0.02]}


def drawn(rng: random.Random) -> dict:
    """A request: what both sides are given, and what only ours is."""
    rows = rng.choice([1, 1, 1, 2, 4])
    settings: dict = {"max_new_tokens": rng.randint(1, 40), "pad_token_id": PAD}
    # Several rows are drawn from one generator: their samples are compared by seed in the tests.
    settings["do_sample"] = rows == 1 and rng.random() < 0.5
    for name, values in {**PROCESSORS, **(WARPERS if settings["do_sample"] else {})}.items():
        if rng.random() < 0.25:
            settings[name] = rng.choice(values)
    needs_eos = {"min_new_tokens", "exponential_decay_length_penalty"} & settings.keys()
    if needs_eos or rng.random() < 0.4:
        settings["eos_token_id"] = rng.sample(range(2, VOCAB_SIZE), rng.randint(1, 6))
    return {
        "family": rng.choice([*FAMILIES]),
        "lengths": [rng.randint(1, 40) for _ in range(rows)],
        "seed": rng.randrange(1000),
        "settings": settings,
        "budget": rng.choice([0, 1, 3, 9, 64, "auto"]),
        "verification": rng.choice(["auto", "fast", "tree"]),
        "drafter": rng.choice(["random", "mixed", "oracle", "wrong", "fused", "few known"]),
    }


def inputs(request: dict) -> dict:
    """The prompts, padded on the left."""
    width = max(request["lengths"])
    ids = torch.full((len(request["lengths"]), width), PAD)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(request["lengths"]):
        ids[row, width - length :] = prompt(length, seed=request["seed"] + row)[0]
        mask[row, width - length :] = 1
    return {"inputs": ids, "attention_mask": mask}


def drafter_of(name: str, text: list[int]):
    """A drafter that knows the first text or not; of a fused one, the request and its memory."""
    if name in ("fused", "few known"):
        return FusedDrafter(memory=Memory(VOCAB_SIZE if name == "fused" else 70))
    makers = {"mixed": mixed_drafter, "oracle": oracle_drafter, "wrong": wrong_drafter}
    return makers[name](text) if name in makers else random_drafter()


def texts(request: dict, dtype: torch.dtype) -> tuple[list, list, int]:
    """The texts of `model.generate` and ours, and how many tokens were accepted."""
    model, given = tiny_model(request["family"], dtype), inputs(request)
    torch.manual_seed(request["seed"])
    plain = model.generate(**given, **request["settings"]).tolist()
    torch.manual_seed(request["seed"])
    output = generate(
        model,
        drafter=drafter_of(request["drafter"], plain[0]),
        budget=request["budget"],
        verification=request["verification"],
        **given,
        **request["settings"],
    )
    return plain, output.sequences.tolist(), output.stats.num_accepted_tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--configurations", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0, help="of the first; others follow")
    options = parser.parse_args()
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    start = perf_counter()
    for number in range(options.seed, options.seed + options.configurations):
        request = drawn(random.Random(number))
        try:
            plain, ours, accepted = texts(request, torch.float32)
            kind = "equal"
            if plain != ours:
                plain, ours, _ = texts(request, torch.float64)
                kind = "tie" if plain == ours else "different"
        except UnsupportedModelError:
            kind, accepted = "refused by name", 0
        except Exception as error:  # whatever it is, it is a finding
            kind, accepted = "raised", 0
            print(f"seed {number}: {request}\n  {type(error).__name__}: {error}")
        counts[kind] += 1
        counts["accepted tokens"] += accepted
        if kind == "different":
            print(f"seed {number}: {request}\n  plain {plain}\n  ours  {ours}")
    seconds = perf_counter() - start
    print(f"{options.configurations} configurations, {dict(counts)}, {seconds:.0f} s")
    sys.exit(counts["different"] + counts["raised"] > 0)


if __name__ == "__main__":
    main()
