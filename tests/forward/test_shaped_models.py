"""Layers of the shapes of real models; `make reliability ARGS=gguf` has all shapes and types."""

import numpy as np
import pytest

from gguf_models import core_of
from model_shapes import MIXES, SHAPES
from shaped_models import NOT_COMPUTED, ShapedFile, differences, is_written

# Rows of 576 and 896 weights are not whole blocks of 256, heads of 256 are more than a row, rows
# of 8192 weights are longer than a chunk, and recurrent layers have chains in place of trees.
SELECTION = [
    ("SmolLM2-135M", "Q4_K_M"),
    ("Qwen2.5-0.5B", "Q5_K_M"),
    ("Gemma-3-270M", "Q6_K"),
    ("Qwen3-0.6B", "IQ4_XS"),
    ("LFM2-350M", "Q4_K_M"),
    ("Qwen3.5-0.8B", "Q8_0"),
    ("EXAONE-4.0-1.2B", "Q5_K_M"),
    ("Llama-3.2-1B", "Q8_0"),
    ("gpt-oss-20b", "MXFP4"),
]
SLOW = ("EXAONE-4.0-1.2B", "Llama-3.2-1B", "gpt-oss-20b")


def written(path, name, mix, instructions, *, num_experts=6, **options):
    shape = SHAPES[name]
    if "experts" in shape:
        shape = {**shape, "experts": {**shape["experts"], "number": num_experts}}
    file = ShapedFile(path / "model.gguf", shape, mix, **options)
    core_of(file.path, instructions)
    return file


@pytest.mark.parametrize("instructions", ["auto", "avx2", "portable"])
@pytest.mark.parametrize(("name", "mix"), SELECTION)
def test_logits_of_real_shapes_are_those_of_numpy(tmp_path, name, mix, instructions):
    if instructions != "auto" and name in SLOW:
        pytest.skip("takes seconds")
    file = written(tmp_path, name, mix, instructions)
    turn = SELECTION.index((name, mix))
    assert [*differences(file, instructions, file.expected(), turn)] == []


def test_logits_of_a_whole_vocabulary_are_those_of_numpy(tmp_path):
    vocab = SHAPES["SmolLM2-135M"]["vocab"]
    file = written(tmp_path, "SmolLM2-135M", "Q6_K", "auto", vocab=vocab)
    assert [*differences(file, "auto", file.expected())] == []


@pytest.mark.parametrize("name", ["SmolLM2-135M", "LFM2-350M"])
def test_one_other_norm_is_a_difference(tmp_path, monkeypatch, name):
    file = written(tmp_path, name, "Q8_0", "auto")
    expected = file.expected()
    assert [*differences(file, "auto", expected)] == []
    rows = file.rows

    def changed(name, start, stop):
        return rows(name, start, stop) * (1.3 if name == "blk.1.ffn_norm.weight" else 1)

    monkeypatch.setattr(file, "rows", changed)
    found = [*differences(file, "auto", file.expected())]
    assert [of.split(":")[0] for of in found] == ["float32", "int8"]


def test_all_shapes_but_those_of_an_architecture_are_written():
    left = [name for name in SHAPES if not is_written(SHAPES[name], "Q4_K_M")]
    assert left == ["Granite-4.0-H-tiny"]
    assert {SHAPES[name]["architecture"] for name in left} == set(NOT_COMPUTED)
    with_experts = [name for name in SHAPES if is_written(SHAPES[name], "MXFP4")]
    assert len(with_experts) == 7
    assert len(MIXES) == 6


@pytest.mark.parametrize("name", ["Qwen3.5-0.8B", "Gemma-3-270M"])
def test_logits_at_places_are_those_of_all(tmp_path, name):
    file = written(tmp_path, name, "Q8_0", "auto")
    tokens, places = np.arange(9), [0, 3, 8]
    found = file.expected(tokens, places)
    np.testing.assert_allclose(found, file.expected(tokens)[places], atol=1e-9)
    assert not np.allclose(found, file.expected(tokens)[[1, 3, 8]], atol=0.1)
