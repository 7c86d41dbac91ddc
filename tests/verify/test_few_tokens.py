"""Passes of few tokens compute what transformers' own functions do."""

import pytest
import torch
from transformers.models.qwen3_next import modeling_qwen3_next as theirs

from specds.verify import few_tokens

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
    torch.testing.assert_close(found, expected)
