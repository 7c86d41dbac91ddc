"""Which models can drafts be verified on, and how is that known."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
import transformers
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.logits_process import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    SynthIDTextWatermarkLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)

from specds._core import TokenTree
from specds.verify.masks import layer_types
from specds.verify.packed_model import packed_model_reasons
from specds.verify.runners import AUTO, RUNNERS, runner_class

if TYPE_CHECKING:
    from collections.abc import Collection

    from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel
    from transformers.generation.streamers import BaseStreamer

MIN_TRANSFORMERS = (5, 17)
"""Oldest release whose cache and mask interfaces this package uses."""

# What `generate` itself prepares for every decoder.
_PREPARED_KWARGS = {
    "attention_mask",
    "cache_position",
    "logits_to_keep",
    "past_key_values",
    "position_ids",
    "use_cache",
}
_LAYER_TYPES = {"full_attention", "sliding_attention", "chunked_attention"}
_ATTENTION = {"sdpa", "eager"}
# Scaling that depends on the largest position of a pass, which a tree's deepest node would decide.
_ROPE_BY_LENGTH = {"dynamic", "longrope"}


class UnsupportedModelError(ValueError):
    """A draft cannot be verified on this model; the message says why."""


@dataclass(frozen=True)
class Support:
    """What `check_model` found.

    Attributes:
        ok: Whether a draft can be verified on the model.
        reasons: Why not; empty where `ok`.
        max_error: Largest error of one pass over a tree, compared with plain passes over its paths:
            the root mean square of a node's differences, over the standard deviation of the
            logits. None where a reason was known without it.
    """

    ok: bool
    reasons: tuple[str, ...]
    max_error: float | None


def check_model(
    model: PreTrainedModel, prompt_length: int | None = None, *, verification: str = "tree"
) -> Support:
    """Checks a model by its configuration, then by running it over a small tree.

    The logits of one pass over eight nodes are compared with plain passes over the tree's paths,
    which use neither our cache nor our masks: three forward passes over some twenty tokens.

    Args:
        model: The model to check.
        prompt_length: Tokens before the tree. By default 12, or as many as cross the model's
            shortest window where that is at most 512 tokens: a wrong window shows only past it.
        verification: How drafts are verified, by a name in `specds.verify.RUNNERS`.

    Raises:
        ValueError: There is no such way to verify.
    """
    _require_name(verification, RUNNERS)
    reasons = unsupported_reasons(model, verification)
    if reasons:
        return Support(False, tuple(reasons), None)
    if prompt_length is None:
        prompt_length = _prompt_length(model.config.get_text_config(decoder=True))
    try:
        error = tree_error(model, prompt_length, verification)
    except (RuntimeError, ValueError, TypeError, AttributeError, IndexError, KeyError) as failure:
        return Support(False, (f"a forward pass over a tree failed: {failure}",), None)
    # Half of the digits: rounding stays below it, a wrong mask or position far above.
    allowed = _resolution(model.dtype) ** 0.5
    if error <= allowed:
        return Support(True, (), error)
    reason = (
        f"logits over a tree differ from plain ones by {error:.2g} of their spread, more than "
        f"{allowed:.2g}; if that is this model's own rounding, pass `self_check=False`"
    )
    return Support(False, (reason,), error)


def _resolution(dtype: torch.dtype) -> float:
    if dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest":
        return 2.0**-10  # TensorFloat-32 keeps ten bits
    # Norms and rotary angles are float32 in most models, whatever the dtype.
    return max(float(torch.finfo(dtype).eps), float(torch.finfo(torch.float32).eps))


_checked: WeakKeyDictionary[torch.nn.Module, dict[str, Support]] = WeakKeyDictionary()


def require_support(
    model: PreTrainedModel, *, verification: str = "tree", self_check: bool = True
) -> str:
    """Refuses a model on which a draft cannot be verified.

    The configuration is looked at in every call; the model is run once in its life for each way to
    verify, and only with `self_check`.

    Returns:
        The name of the way to verify: `verification`, and for `auto` `fast` where that is right on
        the model, else `tree`.

    Raises:
        UnsupportedModelError: With the reasons.
        ImportError: The installed transformers is too old.
    """
    require_transformers()
    if verification == AUTO:
        verification = "tree" if _reasons(model, "fast", self_check) else "fast"
        if verification == "fast":
            return verification
    reasons = _reasons(model, verification, self_check)
    if reasons:
        what = _WHAT[verification]
        raise UnsupportedModelError(
            f"{type(model).__name__} cannot verify {what}: {'; '.join(reasons)}"
        )
    return verification


_WHAT = {"fast": "a packed tree", "tree": "a token tree", "batched": "a batch of rows"}


def _reasons(model: PreTrainedModel, verification: str, self_check: bool) -> tuple[str, ...]:
    reasons = tuple(unsupported_reasons(model, verification))
    if reasons or not self_check:
        return reasons
    checked = _checked.setdefault(model, {})
    if verification not in checked:
        checked[verification] = check_model(model, verification=verification)
    return checked[verification].reasons


def require_verification(verification: str) -> None:
    """Refuses a way to verify that there is not.

    Raises:
        ValueError: Naming those there are.
    """
    _require_name(verification, (AUTO, *RUNNERS))


def _require_name(verification: str, names: Collection[str]) -> None:
    if verification not in names:
        known = " or ".join(map(repr, names))
        raise ValueError(f"verification must be {known}, got {verification!r}")


def require_transformers(version: str = transformers.__version__) -> None:
    """Refuses a transformers release older than `MIN_TRANSFORMERS`.

    Raises:
        ImportError: Naming the version found and the way out.
    """
    if tuple(int(part) for part in version.split(".")[:2]) < MIN_TRANSFORMERS:
        needed = ".".join(map(str, MIN_TRANSFORMERS))
        raise ImportError(
            f"specds needs transformers {needed} or newer, found {version}: "
            f"run `pip install 'transformers>={needed}'`"
        )


def require_arguments(
    input_ids: torch.Tensor, generation_config: GenerationConfig, model_kwargs: dict[str, Any]
) -> list[int]:
    """Refuses what a request asks of `generate` and a tree cannot do.

    Args:
        input_ids: The prompts, as `generate` prepared them.
        generation_config: The configuration, likewise.
        model_kwargs: What `generate` would hand to the model's forward.

    Returns:
        How many tokens on the left of each prompt are padding.

    Raises:
        ValueError: Naming the argument.
    """
    mode = generation_config.get_generation_mode()
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        raise ValueError(f"generation mode {mode.value!r} cannot be used with drafts of a tree")
    for name in ("output_attentions", "output_hidden_states"):
        if getattr(generation_config, name):
            raise ValueError(f"{name} cannot be used: rejected nodes have them too")
    if not generation_config.use_cache:
        raise ValueError("use_cache must not be False: a tree is verified against a KV cache")
    if generation_config.cache_implementation not in (None, "dynamic"):
        raise ValueError(
            f"cache_implementation={generation_config.cache_implementation!r} cannot be used: "
            "trees need a cache of their own"
        )
    if input_ids.numel() == 0:
        raise ValueError(f"input_ids must not be empty, got shape {tuple(input_ids.shape)}")
    return _paddings(input_ids, model_kwargs)


def _paddings(input_ids: torch.Tensor, model_kwargs: dict[str, Any]) -> list[int]:
    mask = model_kwargs.get("attention_mask")
    if mask is not None and mask.shape != input_ids.shape:
        raise ValueError(
            f"attention_mask must have the shape of input_ids, {tuple(input_ids.shape)}, got "
            f"{tuple(mask.shape)}"
        )
    shown = torch.ones_like(input_ids) if mask is None else mask.to(input_ids.dtype)
    if bool((shown.diff(dim=1) < 0).any()) or not bool((shown[:, -1] == 1).all()):
        raise ValueError("attention_mask has zeros behind a token: pad prompts on the left")
    if getattr(model_kwargs.get("past_key_values"), "_is_user_defined", False):
        raise ValueError("past_key_values cannot be used: trees need a cache of their own")
    positions = model_kwargs.get("position_ids")
    counted = (shown.cumsum(dim=1) - 1).clamp(min=0)
    if positions is not None and not torch.equal(positions.expand_as(counted).cpu(), counted.cpu()):
        raise ValueError("position_ids must count from 0, as they do by default")
    for name, value in model_kwargs.items():
        if value is not None and name not in _PREPARED_KWARGS:
            raise ValueError(f"{name} cannot be used: only tokens are verified over a tree")
    return [int(padding) for padding in (shown == 0).sum(dim=1)]


# Logits processors that keep a state, or something for each row of a batch.
_OF_ONE_SEQUENCE = (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    SynthIDTextWatermarkLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)


def require_rowwise(
    processors: LogitsProcessorList, streamer: BaseStreamer | None, keeps_scores: bool
) -> None:
    """Refuses what a request over several sequences asks for and only one can have.

    Raises:
        ValueError: Naming it.
    """
    if streamer is not None:
        raise ValueError("streamer cannot be used with several prompts: call once per prompt")
    if keeps_scores:
        raise ValueError(
            "output_scores and output_logits cannot be used with several prompts: sequences "
            "come to different lengths in a step"
        )
    for processor in processors:
        if isinstance(processor, _OF_ONE_SEQUENCE):
            raise ValueError(
                f"{type(processor).__name__} cannot be used with several prompts: call once per "
                "prompt"
            )


def unsupported_reasons(model: PreTrainedModel, verification: str = "tree") -> list[str]:
    """Why a draft cannot be verified on a model, as far as its configuration tells."""
    config = model.config.get_text_config(decoder=True)
    return [
        *_state_reasons(model, config),
        *_position_reasons(model, config),
        *_attention_reasons(model, config),
        *(_packing_reasons(model, config) if verification != "tree" else ()),
    ]


def _state_reasons(model: PreTrainedModel, config: Any) -> list[str]:
    reasons = []
    if model.config.is_encoder_decoder:
        reasons.append("it is an encoder-decoder model")
    others = sorted(set(getattr(config, "layer_types", None) or ()) - _LAYER_TYPES)
    if others:
        reasons.append(f"layers of type {', '.join(others)} are no plain attention over a KV cache")
    elif model._is_stateful or not model._supports_default_dynamic_cache():  # type: ignore[operator]
        reasons.append("its recurrent state cannot drop a rejected branch")
    if model.training:
        reasons.append("it is in training mode, where dropout is random: call `model.eval()`")
    return reasons


def _position_reasons(model: PreTrainedModel, config: Any) -> list[str]:
    reasons = []
    if _has_alibi(config):
        reasons.append("its alibi biases count cache slots, not positions in the tree")
    elif "position_ids" not in inspect.signature(model.forward).parameters:
        reasons.append("its forward takes no `position_ids`")
    for scaling in _rope_parameters(config):
        rope_type = scaling.get("rope_type")
        if rope_type in _ROPE_BY_LENGTH:
            reasons.append(f"rope type {rope_type} depends on the length of the deepest branch")
        if "mrope_section" in scaling:
            reasons.append("its rotary positions have several dimensions (mrope)")
    return reasons


def _attention_reasons(model: PreTrainedModel, config: Any) -> list[str]:
    reasons = []
    implementation = config._attn_implementation
    if implementation not in _ATTENTION:
        reasons.append(
            f"attention {implementation!r} takes no tree mask: load the model with "
            "`attn_implementation='sdpa'` or 'eager'"
        )
    if "local" in getattr(config, "attention_layers", ()):
        reasons.append("its local attention counts cache slots, not positions in the tree")
    return reasons


def _packing_reasons(model: PreTrainedModel, config: Any) -> list[str]:
    reasons = packed_model_reasons(model)
    if getattr(config, "attn_logit_softcapping", None) is not None:
        reasons.append("its attention caps logits")
    return [f"{reason}: use verification='tree'" for reason in reasons]


def _has_alibi(config: Any) -> bool:
    attention = getattr(config, "attn_config", None)  # mpt nests its attention settings
    return (
        config.model_type == "bloom"
        or bool(getattr(config, "alibi", False))
        or bool(getattr(attention, "alibi", False))
    )


def _rope_parameters(config: Any) -> list[dict[str, Any]]:
    """The rope settings of a configuration: one dictionary, or one per layer type."""
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return nested or [parameters]


def _prompt_length(config: Any) -> int:
    windows = {
        "sliding_attention": getattr(config, "sliding_window", None),
        "chunked_attention": getattr(config, "attention_chunk_size", None),
    }
    crossed = [
        window + 3
        for layer_type in set(layer_types(config))
        if (window := windows.get(layer_type)) is not None and window <= 512
    ]
    return int(max([12, *crossed]))


# Three branches of three nodes, two of which part after their first. The nodes of a branch stand
# apart, so that a mask that goes by slots instead of ancestors is caught.
_PARENTS = (-1, -1, 0, 0, 1, 2, 3, 4)


@torch.no_grad()
def tree_error(model: PreTrainedModel, prompt_length: int, verification: str = "tree") -> float:
    """Runs a small tree both ways, see `check_model`, and returns `Support.max_error`."""
    vocab_size = int(model.config.get_text_config(decoder=True).vocab_size)
    num_tokens = prompt_length + 1 + len(_PARENTS)
    # Spread over the vocabulary by a prime, neighbours distinct, the same in every run.
    token_ids = (np.arange(num_tokens) * 1_000_003 + 13) % vocab_size
    known, nodes = np.split(token_ids, [prompt_length + 1])
    tree = TokenTree(nodes, _PARENTS)
    paths = np.stack([np.concatenate((known, nodes[path])) for path in tree.paths()])
    plain = model(input_ids=torch.from_numpy(paths).to(model.device), use_cache=False).logits

    runner = runner_class(verification, model.device)(
        model, prompt_length=prompt_length, max_length=num_tokens, max_nodes=len(tree)
    )
    try:
        runner.prefill(torch.from_numpy(known[None, :-1]))
        rows = runner.verify(int(known[-1]), tree).clone()
    finally:
        runner.close()
    of_tree = torch.stack([rows[[0, *(1 + path)]] for path in tree.paths()]).float()
    expected = plain[:, -of_tree.shape[1] :].float()
    differences = (of_tree - expected).square().mean(dim=-1).sqrt()
    return float(differences.max() / expected.std())
