"""Linear layers over few tokens, compared with those of torch."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from models import tiny_model
from specds.transformers.verify.attention import shared_copy
from specds.transformers.verify.linear import FastLinear, is_fast, linear

CPU_HAS_IT = is_fast(torch.zeros(1, 32))


@pytest.mark.skipif(not CPU_HAS_IT, reason="this processor has no vectors for it")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1, 64), (1, 7, 64), (2, 3, 64), (24, 64), (25, 64)])
def test_products_equal_those_of_torch(shape, dtype):
    generator = torch.Generator().manual_seed(3)
    states, weight, bias = (
        torch.randn(of, generator=generator).to(dtype) for of in (shape, (13, 64), (13,))
    )
    # A part of a larger tensor is not contiguous.
    strided = torch.stack((states, states), dim=-1)[..., 0]
    near = {"rtol": 2 * torch.finfo(dtype).eps, "atol": 2e-5 if dtype == torch.float32 else 0.02}
    for given in (states, strided):
        for of_bias in (None, bias):
            found = linear(given, weight, of_bias)
            expected = torch.nn.functional.linear(given, weight, of_bias)
            assert found.dtype == dtype
            assert found.shape == expected.shape
            torch.testing.assert_close(found, expected, **near)


def test_unsupported_weights_use_torch():
    usual = torch.zeros(4, 32)
    with torch.autocast("cpu"):
        assert not is_fast(usual)
    others = usual.half(), usual.double(), usual.to("meta"), usual[:, :16], usual.T
    assert not any(map(is_fast, others))
    for weight in (usual.half(), torch.randn(32, 48).T):
        given = torch.randn(2, weight.shape[1]).to(weight.dtype)
        assert torch.equal(linear(given, weight), torch.nn.functional.linear(given, weight))
    with pytest.raises(RuntimeError):
        linear(torch.randn(2, 16), usual)


def test_dispatch_modes_see_the_operations_of_torch():
    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            names.append(operation.name())
            return operation(*args, **(kwargs or {}))

    names = []
    states, weight = torch.randn(2, 32), torch.randn(4, 32)
    usual = linear(states, weight)
    with Seen():
        torch.testing.assert_close(linear(states, weight), usual)
    assert "aten::mm" in names


@pytest.mark.skipif(not CPU_HAS_IT, reason="this processor has no vectors for it")
def test_copy_has_fast_layers_and_the_original_is_unchanged():
    model = tiny_model("gpt_neox")
    copied = shared_copy(model)
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Linear):
            assert type(layer) is torch.nn.Linear
            fits = layer.in_features % 32 == 0
            assert type(copied.get_submodule(name)) is (FastLinear if fits else torch.nn.Linear)
            assert copied.get_submodule(name).weight is layer.weight
