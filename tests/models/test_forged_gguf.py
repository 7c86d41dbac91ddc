"""Forged GGUF files in Python: each is used or refused by a typed error, within its bounds.

`SPECDS_FUZZ=N` makes `N` times as many, from the seed `SPECDS_FUZZ_FROM` on, and checks the bounds.
"""

import os
import random
import warnings
from pathlib import Path
from time import process_time

import numpy as np
import pytest

from gguf_models import byte_tokenizer, write_gguf, write_model
from specds import generate, load_gguf
from specds._core import GgufFile
from specds.models.chat_template import TemplateError, render
from specds.models.gguf import GgufVocabulary, generation_settings, tokens_of
from specds.models.gguf_splits import IGNORE_MERGES, OF_GPT2, OF_SMOLLM, SPLITS
from specds.models.gguf_tokenizer import pretrained_tokenizer
from specds.models.needs import Needs
from specds.models.tokenization import FastTokenizer

_STATUS = Path("/proc/self/status")
HAS_BOUNDS = "SPECDS_FUZZ" in os.environ and _STATUS.exists()
TIMES = int(os.environ.get("SPECDS_FUZZ", "1"))
MOST_SECONDS, ALLOWED = 2.0, 48 << 20
TEXTS = ["", "a b", "  x\n\n", "<|im_start|>", "é€😀\ufffd", "a" * 300, "\0", "'s 12345 'LL"]
NAMES = ["", "a", "ab", "b", " ", "▁", "▁a", "\0", "Ġ", "<|im_start|>", "$A", "<0x00>", "ÿ", "😀",
         "[PAD1]", "x" * 5000]  # fmt: skip
ODD = [0, 1, 7, -1, 257, 258, 2**31, -(2**31), 2**40, 1.5, float("nan"), float("inf"), -1e30, True,
       "", "a", "gpt2", [], [1], ["a"], [0.5], [True] * 3]  # fmt: skip
KEYS = ["tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.scores",
        "tokenizer.ggml.token_type", "tokenizer.ggml.pre", "tokenizer.ggml.model",
        "tokenizer.ggml.eos_token_id", "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eot_token_id",
        "tokenizer.ggml.unknown_token_id", "tokenizer.ggml.padding_token_id",
        "tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token",
        "tokenizer.ggml.add_space_prefix", "tokenizer.chat_template", "general.sampling.temp",
        "general.sampling.top_k"]  # fmt: skip
OF_MODEL = ["general.architecture", "llama.context_length", "llama.embedding_length",
            "llama.attention.head_count", "llama.attention.sliding_window", "llama.rope.freq_base",
            "llama.rope.scaling.type", "llama.rope.scaling.factor", "llama.expert_count",
            "llama.rope.dimension_count", "llama.final_logit_softcapping", "llama.block_count",
            "llama.attention.layer_norm_rms_epsilon", "llama.vocab_size"]  # fmt: skip


class UseLimits:
    """The time and memory of a use, which a forged file must not exceed."""

    def __enter__(self):
        if HAS_BOUNDS:
            Path("/proc/self/clear_refs").write_text("5")
            self.start, self.before = process_time(), _kib("VmRSS")

    def __exit__(self, kind, *_):
        if HAS_BOUNDS and kind is None:
            assert process_time() - self.start < MOST_SECONDS
            assert _kib("VmHWM") - self.before < ALLOWED >> 10


def _kib(name):
    rows = _STATUS.read_text().splitlines()
    return int(next(row for row in rows if row.startswith(name)).split()[1])


def seeds(everyday):
    first = int(os.environ.get("SPECDS_FUZZ_FROM", "0"))
    for seed in range(first, first + everyday * TIMES):
        yield seed, random.Random(seed)


def tokenizer_of(rng):
    """The fields of a whole tokenizer of some tokens, of bytes or of SentencePiece."""
    if rng.random() < 0.5:
        fields = byte_tokenizer(rng.choice([None, "{{ messages[0].content }}"]))
        letters = rng.sample("abcdefgh", 4)
        pairs = [(one, other) for one in letters for other in letters]
        merges = rng.sample(pairs, rng.randint(0, 9))
        tokens = fields["tokenizer.ggml.tokens"] + [one + other for one, other in merges]
        pre = rng.choice([*SPLITS, *OF_GPT2, *OF_SMOLLM, *IGNORE_MERGES])
        fields["tokenizer.ggml.pre"] = pre
        fields["tokenizer.ggml.merges"] = [" ".join(pair) for pair in merges]
    else:
        some = [rng.choice("▁abc") * rng.randint(1, 4) + rng.choice("abc") for _ in range(40)]
        tokens = [
            "<unk>",
            "<s>",
            "</s>",
            *(f"<0x{byte:02X}>" for byte in range(256)),
            *"▁abc",
            *some,
        ]
        fields = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.eos_token_id": 2}
        fields["tokenizer.ggml.scores"] = [-float(rng.randint(0, 60)) for _ in tokens]
    types = [rng.choice([3] + [1] * 9) for _ in tokens]
    return fields | {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}


def lie(rng, fields, keys):
    """Change one field into a lie."""
    key = rng.choice(keys)
    value = fields.get(key)
    way = rng.randrange(5)
    if way == 0:
        fields.pop(key, None)
    elif way == 1 or not isinstance(value, list) or not value:
        fields[key] = rng.choice(ODD)
    elif way == 2:
        fields[key] = value[: rng.randrange(len(value) + 1)] or rng.choice(ODD)
    elif isinstance(value[0], str):
        for _ in range(rng.choice([1, 3, 200])):
            some = NAMES if rng.random() < 0.5 else [*map(" ".join, zip(value, value, strict=True))]
            value[rng.randrange(len(value))] = rng.choice([*some, *value[:9]])
    else:
        # Lists of the writer are of numbers of one kind.
        numbers = [of for of in ODD if type(of) is type(value[0])]
        numbers = [of for of in numbers if isinstance(of, float) or 0 <= of < 1 << 32]
        value[rng.randrange(len(value))] = rng.choice([*numbers, *value])


def use_tokenizer(path, rng):
    file = GgufFile(path)
    GgufVocabulary.read(path)
    generation_settings(file, tokens_of(file, path))
    light = FastTokenizer.of_gguf(file, path)
    size = len(light)
    for text in rng.sample(TEXTS, 4):
        ids = light.encode(text)
        assert all(0 <= number < max(size, 1 << 20) for number in ids)
        light.decode(ids)
    light.decode([rng.randrange(size) for _ in range(20)], skip_special_tokens=True)
    if light.chat_template:
        light.apply_chat_template([{"role": "user", "content": "a"}], tokenize=True)
    if rng.random() < 0.2:
        wrapped = pretrained_tokenizer(file, path)
        wrapped.decode(wrapped("a b")["input_ids"])


def test_forged_tokenizers_are_used_or_refused(tmp_path):
    used = 0
    for seed, rng in seeds(40):
        fields = tokenizer_of(rng)
        for _ in range(rng.choice([0, 1, 1, 2, 4])):
            lie(rng, fields, KEYS)
        path = write_gguf(tmp_path / "m.gguf", {"general.architecture": "llama", **fields}, {})
        with _named(seed), UseLimits():
            try:
                use_tokenizer(path, rng)
                used += 1
            except ValueError:  # what is documented, with its classes
                pass
    assert used > 8 * TIMES


def test_forged_models_are_used_or_refused(tmp_path):
    used = 0
    for seed, rng in seeds(10):
        fields = tokenizer_of(rng)
        for _ in range(rng.choice([0, 1, 1, 2])):
            lie(rng, fields, KEYS)
        vocab = rng.choice([1, 20, 300])
        path = write_model(tmp_path / "m.gguf", "llama", vocab=vocab, extra=_with_lies(rng, fields))
        with _named(seed), UseLimits(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                Needs.of(GgufFile(path), 100)
                framework = "numpy" if rng.random() < 0.7 else "transformers"
                model, _ = load_gguf(path, framework=framework)
                ids = np.array([[0]])
                if framework == "transformers":
                    import torch

                    ids = torch.tensor([[0]])
                generate(model, ids, max_new_tokens=2, max_nodes=2)
                used += 1
            except (ValueError, MemoryError):
                pass
    assert used > TIMES


def _with_lies(rng, fields):
    for _ in range(rng.choice([0, 1, 1, 2])):
        fields[rng.choice(OF_MODEL)] = rng.choice(ODD)
    return fields


ATOMS = ["messages", "messages[0].content", "x", "ns.x", "1", "99999", "'a'", "[1, x]", "{'a': x}",
         "range(99999)", "loop", "(x, x)", "none", "f", "self", "''", "-1", "x[1:]"]  # fmt: skip
FILTERS = ["length", "list", "join('ab')", "string", "tojson", "trim", "replace('a', 'bb')", "sort",
           "center(9999)", "first", "int", "items", "map('string')", "reverse", "upper", "unique",
           "batch(2)", "indent(99)", "sum", "select", "default(x)", "format(x)", "escape", "max",
           "groupby(0)", "slice(3)", "dictsort", "abs", "round(3)", "wordwrap(2)"]  # fmt: skip
METHODS = ["split('a')", "join(x)", "replace('a', x)", "format(x)", "get('a')", "items()",
           "a", "strip()", "count(x)", "append(x)"]  # fmt: skip


def expression(rng, depth):
    if depth == 0 or rng.random() < 0.2:
        return rng.choice(ATOMS)
    one = expression(rng, depth - 1)
    way = rng.randrange(6)
    if way < 2:
        other = expression(rng, depth - 1)
        return f"({one} {rng.choice(['+', '*', '~', '%', '**', '==', 'in', 'and', '//'])} {other})"
    if way == 2:
        return f"{one}|{rng.choice(FILTERS)}"
    if way == 3:
        return f"({one}).{rng.choice(METHODS)}"
    if way == 4:
        return f"f({one})"
    return f"[{one}, {expression(rng, depth - 1)}]"


def statements(rng, depth):
    found = []
    for _ in range(rng.randint(1, 4)):
        value = expression(rng, 3)
        way = rng.randrange(6) if depth else rng.randrange(3)
        inner = statements(rng, depth - 1) if way > 2 else ""
        found.append(
            [
                f"{{{{ {value} }}}}",
                f"{{% set ns.x = {value} %}}",
                f"{{% set x = {value} %}}",
                f"{{% for x in {value} %}}{inner}{{% endfor %}}",
                f"{{% if {value} %}}{inner}{{% else %}}a{{% endif %}}",
                f"{{% macro f(x) %}}{inner}{{% endmacro %}}",
            ][way]
        )
    return "".join(found)


def test_forged_templates_are_rendered_or_refused():
    written = 0
    for seed, rng in seeds(60):
        template = "{% set ns = namespace(x='a') %}" + statements(rng, 4)
        with _named(seed), UseLimits():
            try:
                render(template, [{"role": "user", "content": "abc"}])
                written += 1
            except TemplateError:
                pass
    assert written > 2 * TIMES


class _named:  # noqa: N801  (a function in all but its class)
    """Say the seed of a failure."""

    def __init__(self, seed):
        self.seed = seed

    def __enter__(self):
        pass

    def __exit__(self, kind, error, _):
        if error is not None:
            pytest.fail(f"SPECDS_FUZZ_FROM={self.seed}: {kind.__name__}: {error}", pytrace=True)
