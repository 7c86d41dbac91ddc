"""Logits of llama.cpp, for tiny files of each family: run by `make test-llama`."""

from pathlib import Path

import numpy as np
import pytest

from specds._core import ForwardCache, ForwardModel, GgufFile

llama_cpp = pytest.importorskip("llama_cpp", exc_type=ImportError)

FOLDER = Path(__file__).parents[3] / "target/engines/families"
TOKENS = np.random.default_rng(5).integers(0, 256, 100)

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.gguf")), ids=lambda path: path.stem)
def test_logits_are_those_of_llama_cpp(path):
    engine = llama_cpp.Llama(
        str(path), n_ctx=128, n_batch=128, n_ubatch=128, logits_all=True, n_threads=1,
        verbose=False, flash_attn=False, type_k=0, type_v=0,
    )  # fmt: skip
    engine.eval(TOKENS.tolist())
    expected = engine.scores[: len(TOKENS)]
    core = ForwardModel(GgufFile(path))
    logits = core.forward(ForwardCache(core), [(0, TOKENS, None, len(TOKENS))])
    # llama.cpp reads GELU from a table of halves, and adds up in another order.
    tolerance = 1e-2 if path.stem.startswith("gemma") else 2e-4
    np.testing.assert_allclose(logits, expected, atol=tolerance * expected.std())
