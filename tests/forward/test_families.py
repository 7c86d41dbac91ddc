"""Families of models in GGUF files: logits and texts of transformers, on random weights."""

import numpy as np
import pytest
import torch

from gguf_families import FAMILIES, tiny, write_family
from models import decodes_alike, mixed_drafter, oracle_drafter
from specds._core import ForwardCache, ForwardModel, GgufFile
from specds.models.gguf_model import load_gguf

TOKENS = np.random.default_rng(5).integers(0, 256, 100)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers(tmp_path, family):
    model = tiny(family)
    path = write_family(tmp_path / "model.gguf", family, model)
    with torch.no_grad():
        expected = model(torch.from_numpy(TOKENS)[None]).logits[0].numpy()
    core = ForwardModel(GgufFile(path))
    logits = core.forward(ForwardCache(core), [(0, TOKENS, None, len(TOKENS))])
    assert expected.std() > 0.1
    np.testing.assert_allclose(logits, expected, atol=1e-4 * expected.std())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("activations", ["float32", "int8"])
def test_logits_are_equal_to_the_bit_in_any_company(tmp_path, family, activations):
    core = ForwardModel(GgufFile(write_family(tmp_path / "model.gguf", family, tiny(family))))
    alone, cache = [], ForwardCache(core)
    for token in TOKENS:
        alone.append(core.forward(cache, [(0, [token], None, 1)], activations=activations)[0])
        cache.commit(0, [0])
    cache = ForwardCache(core, 2)
    options = {"activations": activations, "num_threads": 3}
    inputs = [(1, TOKENS[:70], None, 70), (0, TOKENS[:9], None, 9)]
    together = core.forward(cache, inputs, **options)
    np.testing.assert_array_equal(together, [*alone[:70], *alone[:9]])
    cache.commit(1, range(70))
    tree, parents, path = [], [], []
    for token in TOKENS[70:]:
        parent = path[-1] if path else -1
        tree += [3, token]
        parents += [parent, parent]
        path.append(len(tree) - 1)
    logits = core.forward(cache, [(1, tree, parents, len(tree))], **options)
    np.testing.assert_array_equal(logits[path], alone[70:])
    cache.commit(1, path[:10])
    logits = core.forward(cache, [(1, TOKENS[80:], None, 20)], **options)
    np.testing.assert_array_equal(logits, alone[80:])


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_with_drafts_are_those_of_transformers(tmp_path, family):
    model = tiny(family)
    path = write_family(tmp_path / "model.gguf", family, model)
    native, _ = load_gguf(path, framework="transformers")
    ids = torch.from_numpy(TOKENS[:21])[None]
    mode = {"max_new_tokens": 32, "do_sample": False}
    expected = model.generate(ids, **mode, eos_token_id=native.config.eos_token_id)
    assert native.generate(ids, **mode).tolist() == expected.tolist()
    size = native.vocab_size
    num_accepted = 0
    for drafter in (
        lambda text: mixed_drafter(text, size),
        lambda text: oracle_drafter(text, vocab_size=size),
        lambda text: oracle_drafter(text, 2, size),
    ):
        output = decodes_alike(native, drafter, ids=ids, mode=mode)
        assert output.sequences.tolist() == expected.tolist()
        num_accepted += output.stats.num_accepted_tokens
    assert num_accepted > 10


@pytest.mark.parametrize("family", FAMILIES)
def test_configuration_is_that_of_the_model(tmp_path, family):
    config = tiny(family).config
    path = write_family(tmp_path / "model.gguf", family, tiny(family))
    found = load_gguf(path, framework="transformers")[0].config
    assert found.model_type == config.model_type
    own = {
        "eos_token_id",
        "transformers_version",
        "architectures",
        "dtype",
        "pad_token_id",
        "_name_or_path",
    }
    own |= {"rope_parameters"} if family in ("llama", "olmo3", "phi3") else set()
    own |= (
        {"max_position_embeddings", "original_max_position_embeddings"}
        if family == "phi3"
        else set()
    )
    stated, read = _plain(config.to_dict()), _plain(found.to_dict())
    assert {name: read.get(name) for name in stated.keys() - own} == {
        name: stated[name] for name in stated.keys() - own
    }


def _plain(value):
    """Round numbers to the precision of a file."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return float(np.float32(value)) if isinstance(value, float) else value
