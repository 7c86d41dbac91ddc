"""The operators of vLLM's compiled extension without which its V2 runner does not start on a GPU.

A bundle has this module in the extension's place.
"""

from typing import Any

import torch


class _OnDevice:
    """Page-locked memory of the host by its address, which the device shares."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor  # lives as long as the view
        about = tensor.numpy().__array_interface__
        kept = {key: about[key] for key in ("shape", "typestr", "data", "strides")}
        self.__cuda_array_interface__ = {**kept, "version": 2}


def get_cuda_view_from_cpu_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the device that is the memory of a page-locked one."""
    if not tensor.numel():
        return torch.empty_like(tensor, device="cuda")
    return torch.as_tensor(_OnDevice(tensor), device="cuda")


def _never_called(*_: Any) -> None:
    raise NotImplementedError("layers compute by torch with custom_ops=['none']")


operators: Any = torch.ops._C
operators.get_cuda_view_from_cpu_tensor = get_cuda_view_from_cpu_tensor
operators.weak_ref_tensor = lambda tensor: tensor
operators.silu_and_mul = _never_called
