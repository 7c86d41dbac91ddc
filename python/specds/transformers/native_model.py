"""Models of GGUF files on a CPU: a `PreTrainedModel` that the core computes."""

from __future__ import annotations

from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    GenerationConfig,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.cache_utils import Cache
from transformers.generation.utils import GenerateDecoderOnlyOutput
from transformers.modeling_outputs import CausalLMOutputWithPast

from specds._core import ForwardCache, ForwardModel, GgufFile
from specds.models.context import require_room
from specds.models.gguf import generation_settings, tokens_of
from specds.models.gguf_config import model_settings
from specds.models.gguf_model import Activations, CacheType, GgufCache, GgufModel
from specds.models.packing import packed

CACHE_NAME = "cache" if hasattr(GenerateDecoderOnlyOutput, "cache") else "past_key_values"
"""The name of the cache argument in transformers: `cache` since release 5.24."""


def _reload(
    path: str, activations: Activations, context_length: int, cache_type: CacheType
) -> NativeModel:
    file = GgufFile(path)
    return NativeModel.of(file, packed(file, path), path, activations, context_length, cache_type)


class NativeCache(GgufCache, Cache):
    """The cache of a `NativeModel`, as transformers sees it."""

    def __init__(self, states: ForwardCache | None = None, num_rows: int = 1) -> None:
        Cache.__init__(self, layers=[])
        GgufCache.__init__(self, states, num_rows)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return GgufCache.get_seq_length(self)

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        return -1

    def reorder_cache(self, beam_idx: Tensor) -> None:
        raise ValueError("a model of a GGUF file has no beams: use num_beams=1")


class NativeModel(GgufModel, PreTrainedModel, GenerationMixin):  # type: ignore[misc, no-untyped-call]
    """A model of a GGUF file on a CPU, as a model of transformers; its weights are the core's.

    `generate` is that of transformers, so it also decodes without specds. Without a padding mask
    every row counts its positions from 0. Gradients, hidden states, attentions and beams are not
    computed.

    Args:
        config: The configuration of transformers.
        weights: The packed weights.
        activations: As in `load_gguf`.
        context_length: As in `load_gguf`.
        cache_type: As in `load_gguf`.
    """

    main_input_name = "input_ids"
    base_model_prefix = ""
    cache_class = NativeCache
    _supports_sdpa = True
    _no_split_modules: list[str] = []  # noqa: RUF012  (as transformers declares it)

    def __init__(
        self,
        config: PreTrainedConfig,
        weights: ForwardModel,
        activations: Activations,
        context_length: int | None = None,
        cache_type: CacheType | None = None,
    ) -> None:
        PreTrainedModel.__init__(self, config)
        GgufModel.__init__(self, weights, activations, None, "", context_length, cache_type)

    @classmethod
    def of(
        cls,
        file: GgufFile,
        weights: ForwardModel,
        path: str | PathLike[str],
        activations: Activations,
        context_length: int | None = None,
        cache_type: CacheType | None = None,
    ) -> NativeModel:
        settings = model_settings(file, weights.config)
        kind = settings.pop("model_type")
        config = AutoConfig.for_model(kind, name_or_path=str(path), **settings)
        config.dtype = torch.float32
        generation = generation_settings(file, tokens_of(file, path))
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            setattr(config, name, generation[name])
        model = cls(config, weights, activations, context_length, cache_type)
        model.generation_config = GenerationConfig(**generation)  # type: ignore[no-untyped-call]
        model.train(False)
        model.pass_times()
        return model

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    def num_parameters(self, *_: Any, **__: Any) -> int:
        return int(self.weights.config["num_weights"])

    def get_memory_footprint(self, *_: Any, **__: Any) -> int:
        return self.weights.num_bytes

    def __reduce__(self) -> tuple[Any, ...]:
        given = self.activations, self.context_length, self.cache_type
        return _reload, (self.config.name_or_path, *given)

    @property
    def num_threads(self) -> int:
        return torch.get_num_threads()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: NativeCache | None = None,
        past_key_values: NativeCache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        **others: Any,
    ) -> CausalLMOutputWithPast:
        """Compute the tokens after those of the cache, and add them to it.

        Args:
            input_ids: int64 `(num_rows, num_tokens)`.
            attention_mask: Zeros for hidden tokens, which are left out and have no position.
            position_ids: Not used: positions count the tokens that are not hidden.
            cache: The tokens before; None for none.
            past_key_values: Another name of `cache`.
            use_cache: Return the cache.
            logits_to_keep: The number of last tokens with logits; 0 for all.
        """
        num_rows, width = input_ids.shape
        given = past_key_values if cache is None else cache
        cache = NativeCache() if given is None else given
        states = cache.start(self, num_rows)
        kept = min(logits_to_keep or width, width)
        shown = np.ones((num_rows, width), dtype=bool)
        if attention_mask is not None:
            shown = attention_mask[:, -width:].numpy() == 1
        ids = input_ids.numpy()
        inputs = [
            (row, ids[row][shown[row]], None, int(shown[row, -kept:].sum()))
            for row in range(num_rows)
        ]
        found = torch.from_numpy(self.compute(states, inputs))
        for row, tokens, _, _ in inputs:
            states.commit(row, range(len(tokens)))
            cache.padding[row] += width - len(tokens)
        if shown[:, -kept:].all():
            logits = found.view(num_rows, kept, -1)
        else:
            logits = found.new_zeros(num_rows, kept, found.shape[-1])
            logits[torch.from_numpy(shown[:, -kept:])] = found
        past: dict[str, Any] = {} if use_cache is False else {CACHE_NAME: cache}
        return CausalLMOutputWithPast(logits=logits, **past)

    def _prepare_generated_length(  # type: ignore[no-untyped-def, override]
        self, *args: Any, input_ids_length: int, **others: Any
    ):
        require_room(input_ids_length, self.context_length)
        of_class: Any = super()
        config = of_class._prepare_generated_length(
            *args, input_ids_length=input_ids_length, **others
        )
        config.max_length = min(config.max_length, self.context_length)
        return config

    def _prepare_cache_for_generation(  # type: ignore[override]
        self, generation_config: GenerationConfig, model_kwargs: dict[str, Any], *_: Any
    ) -> None:
        if generation_config.cache_implementation not in (None, "dynamic"):
            name = generation_config.cache_implementation
            raise ValueError(f"cache_implementation={name!r} is not one of models of GGUF files")
        given = model_kwargs.get(CACHE_NAME)
        if given is not None and not isinstance(given, NativeCache):
            kind = type(given).__name__
            raise ValueError(f"a model of a GGUF file needs a `NativeCache`, not a {kind}")
        if given is not None:
            given._is_user_defined = True  # type: ignore[attr-defined]
        elif generation_config.use_cache:
            model_kwargs[CACHE_NAME] = NativeCache()
