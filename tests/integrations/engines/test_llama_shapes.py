"""Logits of llama.cpp, for layers of the shapes of real models: run by `make test-llama`."""

import numpy as np
import pytest

from gguf_models import byte_tokenizer
from model_shapes import SHAPES
from shaped_models import ShapedFile
from specds._core import ForwardCache, ForwardModel, GgufFile

xllamacpp = pytest.importorskip("xllamacpp", exc_type=ImportError)

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]

VOCAB_SIZE = 512
TOKENS = np.random.default_rng(5).integers(0, VOCAB_SIZE, 20)
CASES = [
    ("Llama-3.2-1B", "Q4_K_M"),
    ("Qwen2.5-1.5B", "Q5_K_M"),
    ("Qwen3-0.6B", "Q8_0"),
    ("Qwen3.5-0.8B", "IQ4_XS"),
    ("LFM2-350M", "Q6_K"),
    ("OLMo-2-1B", "Q4_K_M"),
    ("SmolLM3-3B", "Q6_K"),
    ("Granite-3.3-2B", "Q4_K_M"),
    ("EXAONE-4.0-1.2B", "Q5_K_M"),
    ("Gemma-2-2B", "Q4_K_M"),
    ("Phi-3-mini", "IQ4_XS"),
    ("GLM-4-9B", "Q4_K_M"),
    ("Qwen3-30B-A3B", "Q4_K_M"),
    ("gpt-oss-20b", "MXFP4"),
    ("Llama-3.1-8B", "Q8_0"),
]


def tokenizer():
    """Return the fields of a tokenizer of which each token is ASCII: others have no logits."""
    fields = byte_tokenizer()
    spelled = fields["tokenizer.ggml.tokens"][:128]
    return fields | {
        "tokenizer.ggml.tokens": [*spelled, *(f"<{token}>" for token in range(128, VOCAB_SIZE))],
        "tokenizer.ggml.token_type": [1] * VOCAB_SIZE,
        "tokenizer.ggml.merges": ["a b"],
    }


def server_of(path):
    options = xllamacpp.CommonParams()
    options.model.path, options.n_ctx, options.n_parallel = str(path), 64, 1
    options.warmup, options.verbosity = False, -1
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = 1
    return xllamacpp.Server(options)


def log_probs(server, tokens):
    """Return the logarithms of probabilities of the token after these, float64 `(vocab,)`."""
    asked = {"prompt": tokens.tolist(), "n_predict": 1, "n_probs": VOCAB_SIZE, "temperature": 0}
    answer = server.handle_completions({**asked, "cache_prompt": False, "ignore_eos": True})
    (token,) = answer["choices"][0]["logprobs"]["content"]
    found = np.full(VOCAB_SIZE, np.nan)
    for of in token["top_logprobs"]:
        found[of["id"]] = of["logprob"]
    return found


@pytest.mark.parametrize(("name", "mix"), CASES)
def test_logits_of_real_shapes_are_those_of_llama_cpp(tmp_path, name, mix):
    shape = SHAPES[name]
    if experts := shape.get("experts"):
        shape = {**shape, "experts": {**experts, "number": experts["used"] + 4}}
    # llama.cpp reads windows of some architectures from the number of a layer.
    file = ShapedFile(tmp_path / "model.gguf", shape, mix, window=1 << 30, tokenizer=tokenizer())
    server, core = server_of(file.path), ForwardModel(GgufFile(file.path))
    for number in (1, 4, 20):
        expected = log_probs(server, TOKENS[:number])
        for activations in ("float32", "int8"):
            inputs = [(0, TOKENS[:number], None, 2 if number > 1 else 1)]
            logits = core.forward(ForwardCache(core), inputs, activations=activations)
            logits = logits.astype(np.float64)
            logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
            errors = np.sqrt(np.square(logits - expected).mean(-1)) / expected.std()
            # llama.cpp rounds what it multiplies to 8 bits, and keys and values to halves; a token
            # then takes another expert. The logits of the token before are others.
            assert errors[-1] < (0.15 if experts else 0.05)
            assert number == 1 or errors[0] > 0.15
