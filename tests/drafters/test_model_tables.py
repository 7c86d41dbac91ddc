"""A model's tables are those of brute force, and what is kept of them is never of another model."""

import copy
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, OPTConfig

import reference_n_grammys as reference
from datastores import names
from models import VOCAB_SIZE, build, tiny_model
from specds.drafters import ModelTables
from specds.transformers import model_tables
from specds.transformers.model_tables import (
    bigram_table,
    cache_folder,
    compute_tables,
    fingerprint,
    load_tables,
    unigram_ranking,
)

_SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 40}
_SMALL = _SIZES | {"intermediate_size": 24, "eos_token_id": None}


def small_model(tied=True, dtype=torch.float32):
    return build("LlamaConfig", {**_SMALL, "tie_word_embeddings": tied}, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_unigram_follows_the_paper_s_distance(tied, dtype):
    model = small_model(tied, dtype)
    embeddings = (model.get_input_embeddings().weight, model.get_output_embeddings().weight)
    assert (embeddings[0] is embeddings[1]) is tied
    inputs, outputs = (weight.detach().double().tolist() for weight in embeddings)
    assert unigram_ranking(model).tolist() == reference.unigram(inputs, outputs)


@torch.no_grad()
@pytest.mark.parametrize("batch_elements", [1 << 25, 7 * VOCAB_SIZE, 1])
@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2", "opt"])
def test_bigrams_match_one_pass_per_token(monkeypatch, family, batch_elements):
    monkeypatch.setattr("specds.transformers.model_tables._BATCH_ELEMENTS", batch_elements)
    model = tiny_model(family, torch.float64)
    token_ids, probs = bigram_table(model, 5)
    assert (token_ids.dtype, probs.dtype) == (np.int32, np.float32)
    for token in range(VOCAB_SIZE):
        expected = model(torch.tensor([[token]])).logits[0, -1].softmax(dim=-1)
        ranking = expected.argsort(descending=True)[:5]
        assert token_ids[token].tolist() == ranking.tolist()
        assert np.allclose(probs[token], expected[ranking], atol=1e-6)


def test_tables_are_computed_once(monkeypatch, tmp_path):
    model, told = tiny_model("llama"), []
    computed = load_tables(model, 5, tmp_path, lambda *now: told.append(now))
    assert told[-1] == ("bigrams", VOCAB_SIZE, VOCAB_SIZE)
    assert [path.suffix for path in tmp_path.iterdir()] == [".npz"]
    monkeypatch.setattr("specds.transformers.model_tables.compute_tables", None)
    for found in (load_tables(model, 5, tmp_path), load_tables(copy.deepcopy(model), 5, tmp_path)):
        for name in ("bigram", "bigram_probs", "unigram"):
            assert np.array_equal(getattr(found, name), getattr(computed, name))
    with pytest.raises(TypeError):
        load_tables(model, 6, tmp_path)


def test_corrupted_byte_never_changes_tables_or_raises(tmp_path):
    path = tmp_path / "tables.npz"
    tables = ModelTables(np.arange(20).reshape(10, 2) % 10, np.full((10, 2), 0.5), np.arange(10))
    model_tables._write(path, tables)
    whole = bytearray(path.read_bytes())
    num_refused = 0
    for place, flip in product(range(len(whole)), (1, 0x40)):
        whole[place] ^= flip
        path.write_bytes(whole)
        whole[place] ^= flip
        found = model_tables._read(path, 10, 2)
        num_refused += found is None
        if found is not None:
            assert np.array_equal(found.bigram, tables.bigram)
            assert np.array_equal(found.bigram_probs, tables.bigram_probs)
    assert 1000 < num_refused < 2 * len(whole)


DAMAGES = {
    "cut": lambda path, _: path.write_bytes(path.read_bytes()[:-50]),
    "foreign": lambda path, _: np.savez(path, bigram=np.zeros(3)),
    "pickled": lambda path, good: np.savez(path, **good | {"unigram": np.array([object()])}),
    "other": lambda path, _: np.savez(path, bigram=[[0]], bigram_probs=[[0.5]], unigram=[0]),
    "packed": lambda path, good: np.savez_compressed(path, **good),
    "no ranking": lambda path, good: np.savez(path, **good | {"unigram": good["unigram"] * 0}),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_file_is_recomputed(tmp_path, damage):
    expected = load_tables(small_model(), 3, tmp_path)
    (path,) = tmp_path.iterdir()
    good = path.read_bytes()
    damage(path, dict(np.load(path)))
    assert path.read_bytes() != good
    assert np.array_equal(load_tables(small_model(), 3, tmp_path).bigram, expected.bigram)
    assert len(path.read_bytes()) == len(good)
    assert names(tmp_path) == [path.name]


CHANGES = {
    "dtype": lambda model: model.double(),
    "weights": lambda model: model.model.layers[0].mlp.up_proj.weight.mul_(1.001),
    "norm": lambda model: model.model.norm.weight.add_(0.01),
    "config": lambda model: setattr(model.config, "rms_norm_eps", 1e-3),
    "embedding": lambda model: model.lm_head.weight.neg_(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_fingerprint_changes_with_weights(name):
    model = small_model(tied=False)
    before = fingerprint(model)
    with torch.no_grad():
        CHANGES[name](model)
    after = fingerprint(model)
    assert before != after
    assert len(bytes.fromhex(before)) == len(bytes.fromhex(after)) == 16


def test_fingerprint_does_not_depend_on_the_path(tmp_path):
    model = small_model()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert fingerprint(loaded) == fingerprint(model) == fingerprint(small_model())
    assert fingerprint(small_model(tied=False)) != fingerprint(model)


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECDS_CACHE", str(tmp_path / "own"))
    load_tables(small_model(), 2)
    assert [path.parent.name for path in tmp_path.rglob("*.npz")] == ["own"]
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700
    monkeypatch.delenv("SPECDS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "specds"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "specds"


def test_unwritable_cache_is_a_warning(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    with pytest.warns(UserWarning, match="are not cached .*: set SPECDS_CACHE"):
        assert load_tables(small_model(), 2, tmp_path / "file").k == 2
    monkeypatch.setattr(np, "savez", Mock(side_effect=OSError("the disk is full")))
    with pytest.warns(UserWarning, match="the disk is full"):
        load_tables(small_model(), 2, tmp_path)
    assert names(tmp_path) == ["file"]


def test_concurrent_writes_are_safe(tmp_path):
    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(load_tables, [small_model()] * 4, [99] * 4, [tmp_path] * 4)]
    # No more are known than there are.
    assert [tables.k for tables in [*found, load_tables(small_model(), 99, tmp_path)]] == [40] * 5
    assert len(names(tmp_path)) == 1


def test_model_without_tables_is_rejected():
    with pytest.raises(ValueError, match="k must be positive, got 0"):
        load_tables(small_model(), 0)
    with pytest.raises(ValueError, match=r"in training mode.*: call eval\(\)"):
        compute_tables(small_model().train())
    projected = OPTConfig(**_SIZES, ffn_dim=48, word_embed_proj_dim=8)
    model = AutoModelForCausalLM.from_config(projected)
    unigram_ranking(model)  # both of its embeddings have the smaller width
    model.lm_head = torch.nn.Linear(16, 40)
    with pytest.raises(ValueError, match="input and output embeddings differ in width"):
        unigram_ranking(model)
    model = small_model(tied=False)
    model.lm_head = None
    with pytest.raises(ValueError, match="so it has no unigram"):
        unigram_ranking(model)
