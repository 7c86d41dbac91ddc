"""Transcripts and drafters for tests of replays."""

import json

import numpy as np

import specds
from datastores import build
from specds._core import FusedState
from specds.bench.transcripts import Transcript

VOCAB_SIZE, SEPARATOR = 8, 7
SWITCHES = ("context", "recycled", "learns", "effort")


def transcript(prompt, completion, source="a"):
    return Transcript(source, np.array(prompt), np.array(completion))


def phrases(random, number, length, num_tokens):
    return random.integers(0, num_tokens, (number, length))


def text_of(random, phrases, length):
    """Phrases one after the other, at random."""
    chosen = random.integers(0, len(phrases), -(-length // phrases.shape[1]))
    return phrases[chosen].ravel()[:length].tolist()


def zero_shot(drafter):
    """A fused drafter that begins without the prior, as if the crate had none."""
    switches = {name: getattr(drafter.config, name) for name in SWITCHES}
    drafter._state = FusedState(
        drafter.datastore, drafter.memory, model_tables=drafter.model_tables, prior=b"", **switches
    )
    return drafter


def build_tiny(path):
    """A datastore of four documents of a hundred tokens below 4."""
    texts = np.random.default_rng(5).integers(4, size=(4, 100)).tolist()
    return build(path, texts, vocab_size=VOCAB_SIZE, separator=SEPARATOR)


def code_answers(folder, tokenizer, **places):
    """A datastore of code in a folder, and files of its lines as answers, from some places on."""
    text = "".join(f"def f{n}(a, b):\n    return a * {n} + b\n\n\n" for n in range(40))
    (folder / "code.txt").write_text(text)
    corpus = str(folder / "code.txt")
    specds.build_datastore(corpus, tokenizer, folder / "code.specds")
    ids = tokenizer(text)["input_ids"]
    for name, starts in places.items():
        rows = [
            {"prompt_ids": ids[at : at + 25], "completion_ids": ids[at + 25 : at + 45]}
            for at in starts
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder
