"""Continuing from the caller's KV cache, which a request leaves as the baseline does."""

from unittest.mock import Mock

import pytest
import torch
from transformers import DynamicCache, StaticCache

from models import (
    GREEDY,
    SAMPLING,
    Drafter,
    Recorder,
    mixed_drafter,
    prompt,
    random_drafter,
    tiny_model,
    widths,
)
from specds.generation import UnsupportedRequestError, generate
from specds.transformers.verify.cache import CACHE_NAME
from specds.transformers.verify.support import RUNNERS

CACHES = {"whole": lambda _: DynamicCache(), "windowed": lambda m: DynamicCache(config=m.config)}


def turns(model, cache, write, mode):
    """Return three turns of a conversation in one cache; `write(ids, **settings)` generates."""
    ids, texts = prompt(), []
    for turn in range(3):
        torch.manual_seed(turn)
        ids = write(ids, **{CACHE_NAME: cache}, max_new_tokens=20, **mode)
        texts.append(ids[0].tolist())
        assert cache.get_seq_length() == ids.shape[1] - 1
        ids = torch.cat([ids, prompt(3 + 5 * turn, seed=turn + 7)], dim=1)
    return texts


@pytest.mark.parametrize("verification", sorted({*RUNNERS} - {"native"}))
@pytest.mark.parametrize("mode", [GREEDY, SAMPLING], ids=["greedy", "sampling"])
@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
def test_conversation_in_one_cache_gives_the_baseline_text(family, kind, mode, verification):
    model = tiny_model(family)
    theirs, ours = CACHES[kind](model), CACHES[kind](model)
    expected = turns(model, theirs, model.generate, mode)
    drafted = []

    def write(ids, **settings):
        drafter = mixed_drafter(expected[len(drafted)])
        settings |= {"max_nodes": 7, "verification": verification, "return_dict_in_generate": True}
        output = generate(model, ids, drafter, **settings)
        assert output.cache is output.past_key_values is ours
        drafted.append(output.stats.num_accepted_tokens)
        return output.sequences

    assert turns(model, ours, write, mode) == expected
    assert sum(drafted) > 0
    for mine, plain in zip(ours.layers, theirs.layers, strict=True):
        assert mine.keys.shape == plain.keys.shape
        assert torch.allclose(mine.keys, plain.keys, atol=1e-4)
        assert torch.allclose(mine.values, plain.values, atol=1e-4)


def test_states_in_a_cache_are_used_and_not_computed_again(monkeypatch):
    model = tiny_model("llama")
    cache = DynamicCache()
    output = generate(model, prompt(), max_new_tokens=9, cache=cache, **GREEDY)
    longer = torch.cat([output.sequences, prompt(5, seed=3)], dim=1)
    settings = {"max_new_tokens": 9, "verification": "model", "max_nodes": 0, **GREEDY}
    with widths(model) as read:
        again = generate(model, longer, past_key_values=cache, **settings).sequences
    assert read == [6] + [1] * 8  # the last token that was emitted has no states yet
    assert again.tolist() == generate(model, longer, **settings).sequences.tolist()
    # A control: the states of another text give another text.
    other = DynamicCache()
    model(prompt(29, seed=5), **{CACHE_NAME: other})
    astray = generate(model, longer, cache=other, **settings).sequences
    assert astray.tolist() != again.tolist()


def test_failed_request_leaves_the_cache_unchanged():
    model, cache = tiny_model("llama"), DynamicCache()
    output = generate(model, prompt(), max_new_tokens=9, cache=cache, **GREEDY)
    held = [layer.keys.clone() for layer in cache.layers]

    longer = torch.cat([output.sequences, prompt(5, seed=3)], dim=1)
    with pytest.raises(RuntimeError, match="out of ideas"):
        drafter = Drafter(Mock(side_effect=RuntimeError("out of ideas")))
        generate(model, longer, drafter, max_new_tokens=9, cache=cache, max_nodes=4)
    for before, layer in zip(held, cache.layers, strict=True):
        assert torch.equal(before, layer.keys)


def test_unsupported_cache_is_refused_with_its_reason():
    model, mask = tiny_model("llama"), torch.tensor([[0, 0] + [1] * 19])
    full = DynamicCache()
    model(prompt(), **{CACHE_NAME: full})
    static = StaticCache(model.config, max_cache_len=64)
    cases = [
        ({"cache": full}, "it holds 21 tokens, and input_ids must begin with these and have more"),
        ({"cache": static}, "only from a `DynamicCache`"),
        ({"cache": DynamicCache(), "attention_mask": mask}, "without padding"),
    ]
    for settings, reason in cases:
        streamer = Recorder()
        with pytest.raises(UnsupportedRequestError, match=f"cache cannot .*{reason}"):
            settings |= {"streamer": streamer, "max_new_tokens": 2}
            generate(model, prompt(), random_drafter(), **settings)
        assert streamer.received == []
    # The baseline also accepts the new tokens alone with a mask of all; a drafter needs all tokens.
    everything = torch.ones((1, 26), dtype=torch.long)
    # The argument in the message depends on the release of transformers.
    refusal = "position_ids must count from 0|attention_mask must have the shape"
    with pytest.raises(UnsupportedRequestError, match=refusal):
        generate(model, prompt(25), cache=full, attention_mask=everything, max_new_tokens=2)
