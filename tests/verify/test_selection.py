"""Models with sparse attention, and layouts of released models, in the self-check."""

import pytest
import torch

from models import VOCAB_SIZE, build, decodes_alike
from specds.transformers.verify.cache import CACHE_NAME
from specds.transformers.verify.chain import ChainRunner
from specds.transformers.verify.support import chain_error, check_model

SPARSE = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 36, "intermediate_size": 52,
    "moe_intermediate_size": 20, "num_hidden_layers": 3, "num_attention_heads": 3,
    "num_key_value_heads": 3, "head_dim": 12, "n_routed_experts": 5, "n_shared_experts": 1,
    "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 10,
    "v_head_dim": 10, "index_head_dim": 12, "max_position_embeddings": 512,
    "layer_types": ["indexed_attention"] * 3, "pad_token_id": 1, "bos_token_id": None,
    "eos_token_id": None, "tie_word_embeddings": False,
}  # fmt: skip


def sparse(index_heads, topk):
    settings = SPARSE | {"index_n_heads": index_heads, "index_topk": topk}
    return build("DeepseekV32Config", settings)


@pytest.mark.parametrize("topk", [7, 64, 2048])
def test_check_rejects_ties_among_selected_keys(topk):
    model = sparse(5, topk)
    # A prompt that selects nothing, or few keys once, does not show them.
    assert chain_error(model, 12, ChainRunner) < 1e-4
    found = check_model(model, verification="chain")
    assert not found.ok
    assert found.max_error > 0.01
    assert {part.index_topk for part in model.modules() if hasattr(part, "index_topk")} == {topk}


@pytest.mark.parametrize("topk", [7, 2048])
def test_sparse_attention_of_many_heads_decodes(topk):
    model = sparse(16, topk)
    assert check_model(model, verification="chain").ok
    assert decodes_alike(model, max_nodes=8).stats.num_accepted_tokens


def test_minimax_is_rejected_in_its_released_order_of_layers():
    linear, full = "linear_attention", "full_attention"
    settings = {
        "vocab_size": VOCAB_SIZE, "hidden_size": 32, "intermediate_size": 48, "head_dim": 8,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4,
        "bos_token_id": None, "eos_token_id": None,
    }  # fmt: skip
    for types, is_served in (([full, linear], True), ([linear] * 7 + [full], False)):
        of_layers = {"num_hidden_layers": len(types), "layer_types": types}
        model = build("MiniMaxConfig", settings | of_layers)
        found = check_model(model, verification="chain")
        assert found.ok is is_served
    assert "counts cached tokens by its first layer" in found.reasons[0]
    # Its own passes over a cache differ from one without.
    ids = torch.arange(12)[None]
    cached = model(ids[:, :6], use_cache=True)
    following = model(ids[:, 6:], **{CACHE_NAME: cached[CACHE_NAME]}).logits
    assert not torch.allclose(following, model(ids).logits[:, 6:], atol=1e-2)
