"""Greedy texts of GGUF files of each architecture, compared with those of transformers."""

import os
import tempfile
from pathlib import Path

import numpy as np
import torch

from gguf_families import FAMILIES, MIXTURES, tiny, write_family
from models import mixed_drafter, oracle_drafter
from specds import generate
from specds.models.gguf_model import load_gguf

_NUM_TOKENS = 48
_DRAFTERS = (
    mixed_drafter,
    lambda text, size: oracle_drafter(text, vocab_size=size),
    lambda text, size: oracle_drafter(text, 2, size),
)


def _files(folder):
    """Yield the name, the random model and the file of each architecture."""
    for name in FAMILIES | MIXTURES:
        model = tiny(name)
        yield name, model, write_family(folder / f"{name}.gguf", name, model)


def figures() -> list[str]:
    """Return the lines of the section, a row for each architecture; `REQUESTS` of each."""
    number = int(os.environ.get("REQUESTS", 10))
    rows = ["| architecture | requests | texts with drafts | accepted tokens | different |"]
    rows.append("| --- | ---: | ---: | ---: | ---: |")
    total = np.zeros(4, dtype=int)
    with tempfile.TemporaryDirectory() as folder:
        for name, model, path in _files(Path(folder)):
            found = _compared(model, path, number)
            total += found
            print(name, *found, flush=True)
            rows.append(f"| {name} | " + " | ".join(f"{count:,}" for count in found) + " |")
    rows.append("| all | " + " | ".join(f"{count:,}" for count in total) + " |")
    return rows


def _compared(model, path, number):
    """Return the number of requests, texts with drafts, accepted tokens and other texts."""
    native, _ = load_gguf(path, framework="transformers")
    random = np.random.default_rng(1)
    num_texts = num_accepted = num_other = 0
    for _ in range(number):
        ids = torch.from_numpy(random.integers(0, 256, (1, random.integers(2, 60))))
        mode = {"max_new_tokens": _NUM_TOKENS, "do_sample": False}
        eos = native.config.eos_token_id
        expected = model.generate(ids, **mode, eos_token_id=eos)[0].tolist()
        num_other += generate(native, ids, max_nodes=0, **mode).sequences[0].tolist() != expected
        for drafter in _DRAFTERS:
            output = generate(
                native, ids, drafter(expected, native.vocab_size), max_nodes=16, **mode
            )
            num_texts += 1
            num_accepted += output.stats.num_accepted_tokens
            num_other += output.sequences[0].tolist() != expected
    return number, num_texts, num_accepted, num_other
