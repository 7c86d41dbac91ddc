"""Backend `packed`: no copies of a long prefix, and no changes of the model."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch

from models import FAMILIES, VOCAB_SIZE, build, decodes_alike, prompt, tiny_model, unpackable
from passes import WIDE_SHAPE, Allocations, rows_tree
from specds.drafters.session import EMPTY_TREE
from specds.generation.runner import UnsupportedModelError
from specds.transformers.verify import generic, support
from specds.transformers.verify.attention import PACKED, attend_packed, packed_model
from specds.transformers.verify.packed import PackedRunner
from specds.transformers.verify.path_rows import PathRows
from specds.transformers.verify.support import check_model, require_support

LONG = 3000


@torch.no_grad()
@pytest.mark.parametrize("num_key_heads", [2, 4])
@pytest.mark.parametrize("runner_class", [PackedRunner, PathRows])
@pytest.mark.parametrize("num_rows", [0, 10, 25])
def test_passes_do_not_copy_the_prefix(num_rows, runner_class, num_key_heads):
    if runner_class is PathRows and torch.__version__.startswith("2.7."):
        pytest.skip("this torch copies keys for grouped queries without a mask")
    model = build("LlamaConfig", {**WIDE_SHAPE, "num_key_value_heads": num_key_heads})
    fast = runner_class(model, prompt_length=LONG, max_length=LONG + 500, max_nodes=100)
    fast.prefill_rows([prompt(LONG)], 500)
    tree = rows_tree(num_rows, 3)
    fast.verify_rows([5], [EMPTY_TREE])[0]  # makes the angles of all slots
    with Allocations() as made:
        fast.verify_rows([5], [tree])[0]
    # The largest tensors are masks. Copies of the four parts of a prefix would be among the six
    # largest; without a draft the largest holds positions.
    num_tokens = num_rows * 4 if runner_class is PathRows else num_rows * 3 + 1
    mask_bytes = 4 // num_key_heads * num_tokens * (LONG + num_tokens) * 4
    largest = sorted(made.num_bytes)
    assert largest[-1] <= (mask_bytes if num_rows else 2 * (LONG + 1) * 4)
    assert largest[-6] < LONG * num_key_heads * 8 * 4


@torch.no_grad()
def test_long_prompt_is_computed_in_chunks(monkeypatch):
    model = build("MistralConfig", {**WIDE_SHAPE, "sliding_window": 50})
    sizes = {"prompt_length": LONG, "max_length": LONG + 500, "max_nodes": 8}
    whole = PackedRunner(model, **sizes)
    with Allocations() as all_at_once:
        expected = whole.prefill_rows([prompt(LONG)])
    monkeypatch.setattr(generic, "LONG_PROMPT", 1000)
    monkeypatch.setattr(generic, "CHUNK", 100)
    chunked = PackedRunner(model, **sizes)
    with Allocations() as in_chunks:
        logits = chunked.prefill_rows([prompt(LONG)])
    assert torch.allclose(logits, expected, atol=1e-3)
    # The largest tensor is the mask of a chunk, not of the prompt.
    assert max(in_chunks.num_bytes) <= 100 * LONG * 4
    assert max(all_at_once.num_bytes) >= LONG * LONG
    one, other = (made.verify_rows([3], [rows_tree(2, 4)])[0] for made in (chunked, whole))
    assert torch.allclose(one, other, atol=1e-3)


def test_packed_model_shares_weights_and_leaves_the_model_unchanged():
    model = tiny_model("gemma3", attention="eager")
    before = {name: dict(module.__dict__) for name, module in model.named_modules()}
    packed, _ = packed_model(model)
    mine, theirs = (dict(of.named_parameters()) for of in (model, packed))
    assert {name: id(of) for name, of in mine.items()} == {n: id(of) for n, of in theirs.items()}
    with torch.no_grad():
        assert packed(prompt()[:, :1]).logits.shape == (1, 1, VOCAB_SIZE)
    assert {name: dict(module.__dict__) for name, module in model.named_modules()} == before
    assert model.config._attn_implementation == "eager"
    configs = {id(m.config): m.config for m in packed.modules() if hasattr(m, "config")}
    assert {config._attn_implementation for config in configs.values()} == {PACKED}


def test_model_can_run_during_a_request():
    def run(verification):
        decodes_alike(tiny_model("qwen2"), verification=verification)

    with ThreadPoolExecutor(4) as threads:
        assert [*threads.map(run, ["packed", "packed", PathRows, PathRows])] == [None] * 4


def test_unpackable_model_is_verified_by_the_model_backend_on_a_gpu(monkeypatch):
    monkeypatch.setattr(support, "_is_proven", lambda _: True)
    with torch.device("meta"):
        model = build("LlamaConfig", FAMILIES["llama"][1]).to("meta")
    asked = partial(require_support, model, verification="auto", check_model=False)
    assert asked() == (PackedRunner, "")
    mlp = model.model.layers[0].mlp
    mlp.forward = mlp.forward  # bound to the layer itself, as offloading does
    why = "the forward of one of its modules was replaced"
    with pytest.warns(UserWarning, match=f"'model' and not by 'packed', which is faster: {why}"):
        assert asked()[0].name == "model"
    # The warning is given once; the statistics of every request have the reason.
    assert why in asked()[1]
    with pytest.raises(UnsupportedModelError, match="by 'packed': the forward of"):
        require_support(model, verification="packed")
    xglm = unpackable()
    assert "cannot be exchanged" in check_model(xglm, verification="packed").reasons[0]
    assert decodes_alike(xglm).stats.verification == "model"


@pytest.mark.parametrize("asked", [{"softcap": 5.0}, {"s_aux": torch.ones(4)}, {}])
def test_unsupported_attention_argument_is_an_error(asked):
    states = torch.zeros(1, 4, 3, 8)
    with pytest.raises(ValueError, match="cannot be packed: use verification='model'"):
        attend_packed(torch.nn.Identity(), states, states, states, None, **asked)
