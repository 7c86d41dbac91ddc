"""Texts in bfloat16 that are independent of drafts."""

import pytest
import torch

from models import (
    FAMILIES,
    Drafter,
    build,
    mixed_drafter,
    oracle_drafter,
    prompt,
    random_drafter,
)
from specds import generate
from specds.drafters import TokenTree
from specds.generation.options import Options
from specds.transformers import request
from specds.transformers.arguments import UnsupportedRequestError
from specds.transformers.verify import support

NOTHING = Drafter(lambda *_: TokenTree([], []))


@pytest.fixture(scope="module")
def model():
    """A model whose two likeliest tokens are often almost equally likely."""
    kind, settings = FAMILIES["llama"]
    return build(kind, {**settings, "num_hidden_layers": 4}, torch.bfloat16, sharpness=1.0)


def rounded_by_shape(_module, _inputs, logits):
    """Add an error that depends on the number of tokens, as kernels do on a smaller scale."""
    places = torch.arange(logits.shape[-1])
    return logits + 0.05 * torch.sin(places * logits.shape[1]).to(logits)


def differing(model, **options):
    """Return the seeds of the prompts, of four, whose text depends on the drafts."""

    def text(seed, drafter):
        torch.manual_seed(seed)
        settings = {"max_new_tokens": 48, "max_nodes": 7, **options}
        return generate(model, prompt(seed=seed), drafter, **settings).sequences.tolist()

    found = set()
    for seed in range(4, 8):
        expected = text(seed, NOTHING)
        drafters = oracle_drafter(expected[0]), mixed_drafter(expected[0]), random_drafter()
        found |= {seed for drafter in drafters if text(seed, drafter) != expected}
    return found


@pytest.mark.parametrize("verification", ["packed", "model"])
def test_text_is_independent_of_drafts_if_shape_invariant(model, verification):
    asked = {"verification": verification, "do_sample": False}
    assert not differing(model, shape_invariant=True, **asked)
    # Some kernels round alike in all shapes; with this hook none do.
    hook = model.lm_head.register_forward_hook(rounded_by_shape)
    try:
        assert differing(model, **asked)
        assert not differing(model, shape_invariant=True, **asked)
    finally:
        hook.remove()


def test_samples_are_independent_of_drafts_if_shape_invariant(model):
    assert not differing(model, shape_invariant=True, do_sample=True)


def test_shape_invariant_selects_the_model_backend_on_a_gpu(monkeypatch):
    """On a GPU our kernel splits slots by lengths."""
    monkeypatch.setattr(support, "_is_proven", lambda _: True)
    with torch.device("meta"):
        model = build(*FAMILIES["llama"]).to("meta")
    asked = [
        Options(NOTHING, shape_invariant=shape_invariant, max_nodes=3, check_model=False)
        for shape_invariant in (True, False)
    ]
    assert [request._choose_backend(of, model, 1)[0].name for of in asked] == ["model", "packed"]


def test_shape_invariant_requires_fixed_nodes_and_one_row(model):
    with pytest.raises(ValueError, match="requires an integer max_nodes"):
        generate(model, prompt(), shape_invariant=True)
    with pytest.raises(UnsupportedRequestError, match="one row"):
        generate(model, prompt().expand(2, -1), shape_invariant=True, max_nodes=3, max_new_tokens=2)
