"""Models of real shapes with random weights: the cost of a model without its checkpoint."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers import PretrainedConfig, PreTrainedModel
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


def _shape(config_class: str, *sizes: int, rope_theta: float = 10_000.0, **more: Any) -> Any:
    rope = {"rope_type": "default", "rope_theta": rope_theta}
    return config_class, dict(zip(_NAMES, sizes, strict=True), rope_parameters=rope, **more)


# Sizes of the published configurations.
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-2-7b": _shape("LlamaConfig", 4096, 11008, 32, 32, 32, 32_000, 4096),
    "llama-2-13b": _shape("LlamaConfig", 5120, 13824, 40, 40, 40, 32_000, 4096),
    "llama-2-70b": _shape("LlamaConfig", 8192, 28672, 80, 64, 8, 32_000, 4096),
    "codellama-34b": _shape("LlamaConfig", 8192, 22016, 48, 64, 8, 32_000, 16_384, rope_theta=1e6),
    "llama-3-8b": _shape("LlamaConfig", 4096, 14336, 32, 32, 8, 128_256, 8192, rope_theta=5e5),
    "mistral-7b": _shape(
        "MistralConfig", 4096, 14336, 32, 32, 8, 32_000, 32_768, rope_theta=1e6, sliding_window=None
    ),
    "qwen2.5-7b": _shape("Qwen2Config", 3584, 18944, 28, 28, 4, 152_064, 32_768, rope_theta=1e6),
    "tinyllama-1.1b": _shape("LlamaConfig", 2048, 5632, 22, 32, 4, 32_000, 2048),
    "llama-68m": _shape("LlamaConfig", 768, 3072, 2, 12, 12, 32_000, 2048),
    "tiny": _shape("LlamaConfig", 64, 96, 2, 4, 2, 32_000, 2048),
}
"""Configuration class and settings by name; ``tiny`` is for dry runs."""


def config_of(shape: str) -> PretrainedConfig:
    """Return the configuration of a real shape, without special tokens."""
    if shape not in SHAPES:
        raise ValueError(f"no shape `{shape}`: choose of {', '.join(SHAPES)}")
    config_class, settings = SHAPES[shape]
    special = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    return getattr(transformers, config_class)(**settings, **special)


def random_model(shape: str, *, device: str, dtype: str) -> PreTrainedModel:
    """Make a model of a real shape on its device, with small random weights from a fixed seed."""
    # The default initialization of 7 billion weights runs on the CPU and takes minutes.
    make, generator = transformers.AutoModelForCausalLM.from_config, torch.Generator(device)
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
