"""Passes of few tokens compute what transformers' own functions do."""

import pytest
import torch
from transformers.models.qwen3_next import modeling_qwen3_next as theirs

from specds.transformers.verify import few_tokens
from specds.transformers.verify.few_tokens import _attend_in_groups, sdpa_attention_forward

NAMES = ["torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"]


def ours(name):
    return few_tokens._other(name, getattr(theirs, name))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_tokens", [1, 2, 7])
def test_delta_rule_equals_that_of_transformers(name, num_tokens):
    torch.manual_seed(num_tokens)
    query, key = torch.randn(2, 3, num_tokens, 2, 8)
    value, state = torch.randn(3, num_tokens, 4, 16), torch.randn(3, 4, 8, 16)
    asked = {"g": -torch.rand(3, num_tokens, 4), "beta": torch.rand(3, num_tokens, 4)}
    asked |= {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
    expected = getattr(theirs, name)(query, key, value, initial_state=state.clone(), **asked)
    found = ours(name)(query, key, value, initial_state=state, **asked)
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-4)
    assert found[1] is state  # so that the cache copies nothing


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("bias", [None, torch.arange(6.0)])
def test_convolution_equals_that_of_transformers(activation, bias):
    torch.manual_seed(0)
    states, weight = torch.randn(2, 6, 5), torch.randn(6, 4)
    expected = theirs.causal_conv1d_fn(states, weight, bias, activation)
    found = ours("causal_conv1d_fn")(states, weight, bias, activation)
    torch.testing.assert_close(found, expected[..., 3:])  # those that see no padding


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_attention_in_groups_equals_that_of_transformers(dtype):
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, heads, num, 8) for heads, num in ((6, 3), (2, 9), (2, 9)))
    mask = torch.ones(2, 1, 3, 9).tril(6).bool()
    mask[1, ..., :2] = False  # of padding
    mask = mask if dtype == torch.bool else torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    module = torch.nn.Module()
    module.num_key_value_groups = 3
    asked = {"attention_mask": mask, "scaling": 0.3}
    found, _ = _attend_in_groups(module, query, key, value, **asked)
    expected, _ = sdpa_attention_forward(module, query, key, value, **asked)
    torch.testing.assert_close(found, expected)
