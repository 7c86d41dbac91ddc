"""GGUF files in parts, with tokens spelled alike, and with tokenizers that do not fit."""

import importlib
import subprocess
import sys

import numpy as np
import pytest
import tokenizers

import specds
from gguf_models import byte_tokenizer, write_gguf, write_model
from specds._core import FormatError, ForwardModel, GgufFile, merges_of
from specds.models import load
from specds.models.gguf import CONVERTED
from specds.models.gguf_tokenizer import build_backend, panics_as_errors
from specds.models.load import load_encoder, load_model, load_tokenizer
from specds.models.resolve import LoadingError

PROMPT = np.array([[72, 101, 108, 108, 111, 72, 101]])


def text_of(path):
    model, tokenizer = specds.load_gguf(path, framework="numpy")
    tokens = specds.generate(model, PROMPT, max_new_tokens=12).sequences
    return np.asarray(tokens).ravel().tolist(), tokenizer.decode(tokens[0])


@pytest.mark.parametrize("num_parts", [2, 5])
def test_split_file_writes_what_the_whole_one_writes(tmp_path, num_parts):
    extra = {"vocab": 258, "extra": byte_tokenizer()}
    expected = text_of(write_model(tmp_path / "m.gguf", "llama", ("Q4_0",), **extra))
    first = write_model(tmp_path / "s.gguf", "llama", ("Q4_0",), num_parts=num_parts, **extra)
    paths = sorted(tmp_path.glob("s-*.gguf"))
    assert [first, num_parts] == [paths[0], len(paths)]
    for path in paths:
        assert text_of(path) == expected


def test_missing_part_is_named_by_each_command(tmp_path):
    extra = {"vocab": 258, "extra": byte_tokenizer()}
    first = write_model(tmp_path / "s.gguf", "llama", ("Q4_0",), num_parts=3, **extra)
    missing = tmp_path / "s-00002-of-00003.gguf"
    missing.unlink()
    with pytest.raises(FormatError, match=f"{missing.name} is missing: download it"):
        specds.load_gguf(first)
    (tmp_path / "a.txt").write_text("text")
    for command in (
        ["generate", "--model", first, "a"],
        ["chat", "--model", first],
        ["check", first],
        ["build", "--corpus", tmp_path / "a.txt", "--tokenizer", first, "--out", tmp_path / "d"],
    ):
        called = [sys.executable, "-m", "specds", *map(str, command)]
        done = subprocess.run(called, capture_output=True, text=True, input="")
        assert done.returncode == 1
        *_, line = done.stderr.splitlines()
        assert line.startswith("error: ")
        assert f"{missing.name} is missing" in line


def test_activations_are_int8_unless_asked_for(tmp_path):
    path = str(write_model(tmp_path / "m.gguf", "llama", vocab=258, extra=byte_tokenizer()))
    loaded = load_model(path, framework="numpy")[0]
    assert (loaded.activations, loaded.cache_type) == ("int8", "float16")
    loaded = load_model(path, framework="numpy", activations="float32")[0]
    assert (loaded.activations, loaded.cache_type) == ("float32", "float32")
    assert load_model("demo-small", framework="numpy")[0].activations == "float32"


def test_split_file_that_native_cannot_compute_is_not_given_to_transformers(tmp_path):
    path = write_model(tmp_path / "s.gguf", "mpt", num_parts=2, vocab=258, extra=byte_tokenizer())
    with pytest.raises(ValueError, match="transformers reads no split files"):
        load_model(str(path))


def sentencepiece(tokens, types, **more):
    scores = [0.0 if type_ != 1 else -float(place) for place, type_ in enumerate(types)]
    return {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores, "tokenizer.ggml.token_type": types, **more,
    }  # fmt: skip


def test_tokens_spelled_alike_are_decoded_by_the_list_of_the_file(tmp_path):
    tokens = ["<unk>", "<s>", "</s>", "▁", "a", "b", "ab", "▁ab", "ab", "<s>", "▁▁", "  ", "</s>"]
    types = [2, 3, 3, *[1] * 6, 3, 1, 1, 3]
    path = tmp_path / "m.gguf"
    extra = sentencepiece(tokens, types, **{"tokenizer.ggml.eos_token_id": 12})
    write_model(path, "llama", extra=extra)
    assert len({"  ", *tokens}) < len(tokens)
    light, heavy = load_encoder(str(path)), load_tokenizer(str(path))
    assert light.eos_token_id == 12
    for tokenizer in (light, heavy):
        spelled = [tokenizer.decode([5, number, 5]) for number in range(len(tokens))]
        assert spelled == [f"b{token.replace('▁', ' ')}b" for token in tokens]
        assert tokenizer.decode([1, 4, 9], skip_special_tokens=True) == "a"
        # As in llama.cpp, the last one is used for texts.
        assert tokenizer.encode("bab", add_special_tokens=False)[-1] == 8
    assert heavy.batch_decode([[6, 5], [8, 5]]) == ["abb", "abb"]


def test_runs_of_spaces_are_the_tokens_that_the_file_defines(tmp_path):
    tokens = ["<unk>", "<s>", "</s>", "▁", "a", "▁a", "  ", "   "]
    extra = sentencepiece(tokens, [2, 3, 3, 1, 1, 1, 4, 4])
    extra["tokenizer.ggml.add_space_prefix"] = False
    path = str(write_model(tmp_path / "m.gguf", "llama", vocab=len(tokens), extra=extra))
    text = "a a  a     a"
    for tokenizer in (load_encoder(path), load_tokenizer(path)):
        # As in llama.cpp, the longest one first.
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        assert token_ids == [4, 5, 6, 4, 7, 6, 4]
        assert tokenizer.decode(token_ids) == text


def test_byte_level_tokens_spelled_alike_are_decoded(tmp_path):
    extra = byte_tokenizer()
    extra["tokenizer.ggml.tokens"] += ["a", "<|im_end|>"]
    extra["tokenizer.ggml.token_type"] += [1, 3]
    path = write_model(tmp_path / "m.gguf", "llama", vocab=260, extra=extra)
    for tokenizer in (load_encoder(str(path)), load_tokenizer(str(path))):
        assert tokenizer.decode([97, 258, 257, 259]) == "aa<|im_end|><|im_end|>"


@pytest.mark.parametrize(
    ("merges", "reason"),
    [
        (["a b"], "'a b' is not one of tokens to a token"),
        (["a zz"], "'a zz' is not"),
        (["ab"], "'ab' is not"),
        ([""], "'' is not"),
        ([1, 2], "1 is not"),
        ("a b", "not a list"),
    ],
)
def test_merges_that_give_no_token_are_named(tmp_path, merges, reason):
    extra = byte_tokenizer() | {"tokenizer.ggml.merges": merges}
    path = write_model(tmp_path / "m.gguf", "llama", vocab=258, extra=extra)
    with pytest.raises(ValueError, match=f"m.gguf holds no usable tokenizer: its .*{reason}"):
        build_backend(GgufFile(path), path)


def test_panic_of_the_package_is_a_value_error():
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        tokenizers.models.BPE(vocab={"a": 0, "b": 1}, merges=[("a", "b")])
    is_panic = not isinstance(caught.value, Exception)
    expected = pytest.raises(ValueError if is_panic else Exception, match="panicked" * is_panic)
    with expected, panics_as_errors():
        tokenizers.models.BPE(vocab={"a": 0, "b": 1}, merges=[("a", "b")])
    with pytest.raises(KeyboardInterrupt), panics_as_errors():
        raise KeyboardInterrupt


def test_merges_of_a_million_letters_are_found_in_time_in_proportion():
    tokens = ["x" * 1_000_000, "x" * 999_999, "x"]
    assert merges_of(tokens, [0.0, -1.0, -2.0]).tolist() == [[1, 2], [2, 1]]
    with pytest.raises(ValueError, match="more than 16 ways"):
        merges_of(["x" * length for length in range(1, 1000)], [0.0] * 999)


def test_metadata_of_a_split_are_those_of_its_first_part(tmp_path):
    path = write_model(tmp_path / "m.gguf", "llama", num_parts=2)
    file = GgufFile(tmp_path / "m-00002-of-00002.gguf")
    assert file["general.architecture"] == "llama"
    assert ForwardModel(file).config == ForwardModel(GgufFile(path)).config


def test_converted_architectures_are_those_of_transformers():
    utils = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    others = {"general", "tokenizer"}
    theirs = {name.replace("_", "-") for name in utils.GGUF_SUPPORTED_ARCHITECTURES} - others
    ours = {name.replace("moe", "-moe") for name in CONVERTED}
    assert ours == theirs


def test_file_that_nothing_computes_advises_no_installation(tmp_path, monkeypatch):
    path = write_gguf(tmp_path / "m.gguf", {"general.architecture": "unheard-of"}, {})
    monkeypatch.setattr(load, "find_spec", lambda name: None)
    with pytest.raises(LoadingError, match=r'computes the architecture "unheard-of": run it with'):
        load.load_model(str(path), framework="numpy")
