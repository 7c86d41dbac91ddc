"""Linear layers over a few tokens on a CPU, with a product that reads each weight once."""

import torch
from torch import Tensor

from specds._core import has_linear_product, linear_product

_HAS_TILES = torch.cpu._is_amx_tile_supported()
# With more tokens torch's product is as fast.
_MAX_TOKENS = {torch.float32: 24, torch.bfloat16: 64 if _HAS_TILES else 24}
# Types of the same bits in numpy, which has no bfloat16.
BITS = {torch.float32: torch.float32, torch.bfloat16: torch.uint16}
_HAS_PRODUCT = has_linear_product()


def is_fast(weight: Tensor) -> bool:
    """Return whether `linear` has its own product for these weights on this CPU."""
    return (
        _HAS_PRODUCT
        and weight.dtype in BITS
        and weight.device.type == "cpu"
        and weight.shape[1] % 32 == 0
        and weight.is_contiguous()
        and not torch.is_autocast_enabled("cpu")
    )


def linear(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `torch.nn.functional.linear` with weights that are `is_fast`.

    A few tokens, at most 24 or 64, take little longer than one.
    """
    num_tokens = states.shape[:-1].numel()
    fits = weight.is_contiguous() and states.shape[-1] == weight.shape[1]
    # Tools that count or record operations must see those of torch.
    is_watched = torch._C._len_torch_dispatch_stack() > 0
    is_few = 1 < num_tokens <= _MAX_TOKENS.get(weight.dtype, 0)
    if is_watched or not (is_few and fits) or states.dtype != weight.dtype:
        return torch.nn.functional.linear(states, weight, bias)
    if _HAS_TILES and weight.dtype == torch.bfloat16:
        # As the first factor, weights are read where they lie; as the second, torch packs them.
        tokens = states.reshape(num_tokens, -1).t()
        of_rows = (
            torch.mm(weight, tokens) if bias is None else torch.addmm(bias[:, None], weight, tokens)
        )
        made = states.new_empty(*states.shape[:-1], weight.shape[0])
        made.view(num_tokens, -1).t().copy_(of_rows)
        return made
    tokens = states.detach().reshape(num_tokens, -1).float().contiguous()
    bits = weight.detach().view(BITS[weight.dtype]).numpy()
    made = torch.from_numpy(linear_product(bits, tokens.numpy(), torch.get_num_threads()))
    if bias is not None:
        made += bias  # before rounding, as in torch
    return made.to(weight.dtype).view(*states.shape[:-1], -1)


class FastLinear(torch.nn.Linear):
    def forward(self, states: Tensor) -> Tensor:
        return linear(states, self.weight, self.bias)
