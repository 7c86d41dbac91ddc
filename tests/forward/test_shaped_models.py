"""Layers of the shapes of real models; `make reliability ARGS=gguf` has all shapes and types."""

import pytest

from model_shapes import SHAPES
from shaped_models import differences, expected_logits, is_written, write_shaped
from specds._core import ForwardModel, GgufFile

# Rows of 576 and 896 weights are not whole blocks of 256, heads of 256 are more than a row, and
# rows of 8192 weights are longer than a chunk.
SELECTION = [
    ("SmolLM2-135M", "Q4_K_M"),
    ("Qwen2.5-0.5B", "Q5_K_M"),
    ("Gemma-3-270M", "Q6_K"),
    ("Qwen3-0.6B", "Q4_K_M"),
    ("Llama-3.2-1B", "Q8_0"),
]


def written(path, name, mix, instructions, **options):
    file = write_shaped(path / "model.gguf", SHAPES[name], mix, **options)
    try:
        ForwardModel(GgufFile(file), instructions=instructions)
    except ValueError as error:
        if "does not have" not in str(error):
            raise
        pytest.skip(str(error))
    return file


@pytest.mark.parametrize("instructions", ["auto", "avx2", "portable"])
@pytest.mark.parametrize(("name", "mix"), SELECTION)
def test_logits_of_real_shapes_are_those_of_numpy(tmp_path, name, mix, instructions):
    if instructions == "portable" and name == "Llama-3.2-1B":
        pytest.skip("takes seconds")
    file = written(tmp_path, name, mix, instructions)
    assert [*differences(file, instructions, expected_logits(file))] == []


def test_logits_of_a_whole_vocabulary_are_those_of_numpy(tmp_path):
    vocab = SHAPES["SmolLM2-135M"]["vocab"]
    file = written(tmp_path, "SmolLM2-135M", "Q6_K", "auto", vocab=vocab)
    assert [*differences(file, "auto", expected_logits(file))] == []


def test_other_logits_are_a_difference(tmp_path):
    file = written(tmp_path, "SmolLM2-135M", "Q8_0", "auto")
    other = write_shaped(tmp_path / "other.gguf", SHAPES["SmolLM2-135M"], "Q8_0", seed=2)
    assert len([*differences(file, "auto", expected_logits(other))]) == 2


def test_shapes_of_each_supported_architecture_are_written():
    assert sum(is_written(shape, "Q4_K_M") for shape in SHAPES.values()) >= 39
