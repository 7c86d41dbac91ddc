"""Models of real shapes with random weights: the cost of a model without its checkpoint."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel
from transformers.initialization import no_init_weights

_NAMES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "max_position_embeddings",
)


def _shape(*sizes: int, rope_theta: float = 10_000.0) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": rope_theta}
    return dict(zip(_NAMES, sizes, strict=True), rope_parameters=rope)


# Sizes of the published configurations.
SHAPES = {
    "llama-2-7b": _shape(4096, 11008, 32, 32, 32, 32_000, 4096),
    "llama-3-8b": _shape(4096, 14336, 32, 32, 8, 128_256, 8192, rope_theta=5e5),
    "tiny": _shape(64, 96, 2, 4, 2, 32_000, 2048),
}
"""Settings by name; ``tiny`` is for dry runs."""


def config_of(shape: str) -> LlamaConfig:
    """Return the configuration of a real shape, without special tokens."""
    special = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    return LlamaConfig(**SHAPES[shape], **special)


def random_model(shape: str, *, device: str, dtype: str) -> PreTrainedModel:
    """Make a model of a real shape on its device, with small random weights from a fixed seed."""
    # The default initialization of 7 billion weights runs on the CPU and takes minutes.
    make, generator = AutoModelForCausalLM.from_config, torch.Generator(device)
    with torch.device(device), no_init_weights():
        model = make(config_of(shape), dtype=getattr(torch, dtype)).eval()
    generator.manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(std=0.02, generator=generator)
            else:
                weight.fill_(1.0)  # norms and biases
    return model
