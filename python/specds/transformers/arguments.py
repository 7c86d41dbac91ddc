"""Checks of a request: an unsupported argument raises an error that names it."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
from transformers import GenerationConfig, GenerationMixin, LogitsProcessorList, PreTrainedModel
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer
from transformers.generation import stopping_criteria
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.stopping_criteria import StoppingCriteriaList

from specds.constraints import has_constraint
from specds.constraints.recognition import num_grammars
from specds.generation.options import UnsupportedRequestError
from specds.transformers.accept.on_host import is_stateless
from specds.transformers.native_model import NativeCache, NativeModel
from specds.transformers.verify.cache import CACHE_NAME
from specds.transformers.verify.chain import padding_error
from specds.transformers.verify.inputs import layer_types
from specds.transformers.verify.states import MarkedCache
from specds.transformers.verify.support import allowed_error, is_recurrent

# Model arguments that `generate` itself prepares for every decoder.
_PREPARED_KWARGS = {
    "attention_mask",
    CACHE_NAME,
    "cache_position",
    "logits_to_keep",
    "position_ids",
    "use_cache",
}
# Arguments that select a mode other than greedy decoding and sampling.
_OF_OTHER_MODES = (
    *("num_beams", "num_beam_groups", "constraints", "force_words_ids", "penalty_alpha"),
    *("dola_layers", "prompt_lookup_num_tokens", "assistant_early_exit"),
)
# In these, 0 marks a token as text, for models that also take images.
_TOKEN_TYPES = {"mm_token_type_ids", "token_type_ids"}


def require_inputs(model: Any, input_ids: Any) -> None:
    """Check that `model` is a model and `input_ids`, unless None, a tensor of token ids.

    Raises:
        TypeError: One of them is not; the message names it.
    """
    if not callable(getattr(model, "generate", None)):
        raise TypeError(
            f"model must be a model of transformers, got {type(model).__name__}: load it by "
            "`AutoModelForCausalLM.from_pretrained`"
        )
    if input_ids is None:
        return
    got = type(input_ids).__name__
    if isinstance(input_ids, torch.Tensor):
        is_whole = not (input_ids.is_floating_point() or input_ids.dtype == torch.bool)
        if is_whole and input_ids.dim() == 2:
            return
        got = f"{input_ids.dtype} of shape {tuple(input_ids.shape)}"
    raise TypeError(
        "input_ids must be a tensor of token ids of shape (num_rows, length), such as "
        f"`tokenizer(text, return_tensors='pt').input_ids`, got {got}"
    )


def require_request(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    generation_config: GenerationConfig,
    model_kwargs: dict[str, Any],
) -> torch.Tensor:
    """Check that drafts can serve a request that `generate` has prepared.

    Returns:
        True for the tokens of the prompts that the model sees, bool, shaped like `input_ids`.

    Raises:
        UnsupportedRequestError: An argument cannot be served; the message names it.
    """
    mask = model_kwargs.get("attention_mask")
    shown = torch.ones_like(input_ids) if mask is None else mask.to(input_ids)
    for reason in _reasons(model, input_ids, shown, generation_config, model_kwargs):
        raise UnsupportedRequestError(reason)
    return shown == 1


def _reasons(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    shown: torch.Tensor,
    generation_config: GenerationConfig,
    model_kwargs: dict[str, Any],
) -> Iterator[str]:
    """Yield the reasons against a request; each check relies on the previous ones."""
    mode, cache = generation_config.get_generation_mode(), generation_config.cache_implementation
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        asked = {name: getattr(generation_config, name, None) for name in _OF_OTHER_MODES}
        named = [f"{name}={value!r}" for name, value in asked.items() if value not in (None, 1)]
        yield f"{' and '.join(named)} cannot be used: drafts are not for {mode.value}"
    for name in ("output_attentions", "output_hidden_states"):
        if getattr(generation_config, name):
            yield f"{name} cannot be used: rejected nodes have them too"
    if not generation_config.use_cache:
        yield "use_cache must not be False: a tree is verified against a KV cache"
    if cache not in (None, "dynamic"):
        yield f"cache_implementation={cache!r} cannot be used: trees need a cache of their own"
    for name, value in model_kwargs.items():
        if name not in _PREPARED_KWARGS and not _is_empty(model, name, value):
            yield _only_tokens(name)
    if input_ids.numel() == 0:
        yield f"input_ids must not be empty, got shape {tuple(input_ids.shape)}"
    if shown.shape != input_ids.shape:
        yield (
            f"attention_mask must have the shape of input_ids, {tuple(input_ids.shape)}, got "
            f"{tuple(shown.shape)}"
        )
    if not bool((shown[:, -1] == 1).all()):
        yield "attention_mask has zeros behind a prompt: pad prompts on the left"
    if bool((shown.diff(dim=1) < 0).any()) and _has_windows(model):
        yield "attention_mask has zeros inside a prompt: this model's windows count them"
    positions = model_kwargs.get("position_ids")
    if positions is not None:
        # Hidden tokens have no position.
        counted = shown.cumsum(dim=1) - 1
        fits = positions.shape[-1] == counted.shape[1]
        if not fits or bool(((positions.to(counted) != counted) & (shown == 1)).any()):
            yield "position_ids must count from 0, as they do by default"


def require_tokens_only(model: PreTrainedModel, arguments: Mapping[str, Any]) -> None:
    """Check that a call has no inputs of the model other than tokens, such as images.

    Raises:
        UnsupportedRequestError: It has one; the message names the argument.
    """
    forward: Any = getattr(model, "forward", model.generate)
    inputs = inspect.signature(forward).parameters
    for name, value in arguments.items():
        is_input = isinstance(value, torch.Tensor) and name in inputs
        if is_input and name not in {"input_ids", *_PREPARED_KWARGS, *_TOKEN_TYPES}:
            raise UnsupportedRequestError(_only_tokens(name))


def _only_tokens(name: str) -> str:
    return f"{name} cannot be used: only tokens are verified over a tree"


def require_usual_inputs(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    shown: torch.Tensor,
    model_kwargs: dict[str, Any],
) -> None:
    """Check that a model's own `prepare_inputs_for_generation` passes the prompt as tokens.

    Adapters and remote code can replace tokens by embeddings, or add states to the cache. Drafts
    would then continue another text, so the inputs of the first step are compared with the usual.

    Raises:
        UnsupportedRequestError: They differ; the message names the inputs.
    """
    prepare: Any = model.prepare_inputs_for_generation
    if getattr(prepare, "__func__", None) is GenerationMixin.prepare_inputs_for_generation:
        return
    cache = model_kwargs.get(CACHE_NAME)
    # A new cache of a model without attention has no length.
    is_known = getattr(cache, "_is_user_defined", False)
    num_known = cast("DynamicCache", cache).get_seq_length() if is_known else 0
    num_new = input_ids.shape[1] - num_known if num_known else None
    settings = {"next_sequence_length": num_new, "is_first_iteration": True, **model_kwargs}
    passed = dict(prepare(input_ids, **settings))
    ids, mask, positions = (
        passed.pop(name, None) for name in ("input_ids", "attention_mask", "position_ids")
    )
    usual, counted = input_ids[:, num_known:], shown.cumsum(dim=1)[:, num_known:] - 1
    differing = [] if _are_equal(ids, usual) else ["input_ids"]
    if not (mask is None or _are_equal(mask, shown)):
        differing.append("attention_mask")
    if not (positions is None or _are_equal(positions, counted, shown[:, num_known:])):
        differing.append("position_ids")
    if passed.pop(CACHE_NAME, None) not in (None, cache):
        differing.append(CACHE_NAME)
    differing += [
        name
        for name, value in passed.items()
        if isinstance(value, (torch.Tensor, tuple, list))
        and name not in _PREPARED_KWARGS
        and not _is_empty(model, name, value)
    ]
    if differing:
        raise UnsupportedRequestError(
            f"the model's own `prepare_inputs_for_generation` changes {', '.join(differing)}: "
            "drafts are verified with the usual inputs"
        )


def _are_equal(
    found: torch.Tensor | None, expected: torch.Tensor, shown: torch.Tensor | None = None
) -> bool:
    if found is None or found.shape != expected.shape:
        return False
    equal = found.to(expected) == expected
    return bool((equal if shown is None else equal | ~shown).all())


def _is_empty(model: PreTrainedModel, name: str, value: Any) -> bool:
    """Return whether an argument is empty, or a mask of token types that marks all as text."""
    if name in _TOKEN_TYPES and hasattr(model.config, "vision_config"):
        return value is None or not bool(value.any())
    return value is None or (isinstance(value, dict) and not any(value.values()))


def _has_windows(model: PreTrainedModel) -> bool:
    config = model.config.get_text_config(decoder=True)
    return set(layer_types(config)) != {"full_attention"}


def takes_past(model: PreTrainedModel) -> bool:
    """Return whether drafts can continue from a cache; chunked attention drops earlier states."""
    kinds = layer_types(model.config.get_text_config(decoder=True))
    has_cache: bool = model._supports_default_dynamic_cache()  # type: ignore[operator]
    return has_cache and "chunked_attention" not in kinds


def require_padding(model: PreTrainedModel, chunk_size: int | None) -> None:
    """Refuse a padded request where padding changes what the model itself computes.

    Raises:
        UnsupportedRequestError: With the number.
    """
    if chunk_size == 1:
        raise UnsupportedRequestError(
            "prefill_chunk_size=1 with padding, which recurrent layers mask only in passes of "
            "several tokens: use 2 or more"
        )
    if (error := padding_error(model)) > allowed_error(model):
        raise UnsupportedRequestError(
            f"attention_mask has padding, which changes this model's own logits by {error:.2g} of "
            "their spread: call once per prompt"
        )


def require_past(model: PreTrainedModel, shown: torch.Tensor, cache: Any) -> DynamicCache | None:
    """Return the cache that the caller passed, or None.

    Args:
        model: The model.
        shown: bool `(num_rows, length)`, True for the tokens that the model sees.
        cache: The cache that `generate` prepared.

    Raises:
        UnsupportedRequestError: A tree cannot continue from the cache; the message says why.
    """
    if not getattr(cache, "_is_user_defined", False):
        return None
    reason = None
    windows = (DynamicLayer, DynamicSlidingWindowLayer)
    is_known = is_recurrent(model) or all(type(layer) in windows for layer in cache.layers)
    wanted = (NativeCache,) if isinstance(model, NativeModel) else (DynamicCache, MarkedCache)
    if type(cache) not in wanted or not is_known:
        reason = f"drafts continue only from a `{wanted[0].__name__}`"
    elif len(shown) > 1 or not bool(shown.all()):
        reason = "it works for one prompt without padding"
    elif not cache.get_seq_length() < shown.shape[1]:
        reason = (
            f"it holds {cache.get_seq_length()} tokens, and input_ids must begin with these and "
            f"have more, got {shown.shape[1]}"
        )
    elif not takes_past(model):
        reason = "this model's attention is chunked, or its cache is of another class"
    if reason is not None:
        raise UnsupportedRequestError(f"cache cannot be used: {reason}")
    return cast("DynamicCache", cache)


def require_rowwise(
    processors: LogitsProcessorList, criteria: StoppingCriteriaList, num_rows: int
) -> None:
    """Check that all processors and criteria can be called for each row of a batch alone.

    A class from outside transformers may keep a state or look at all rows, unless its attribute
    `rowwise` is true.

    Raises:
        UnsupportedRequestError: One of them cannot; the message names its class.
    """
    for called in (*processors, *criteria):
        of_criteria = type(called).__module__ == stopping_criteria.__name__
        known = is_stateless(called) or has_constraint(called) or of_criteria
        if has_constraint(called) and num_grammars(called) not in (1, num_rows):
            raise UnsupportedRequestError(
                f"{type(called).__name__} has {num_grammars(called)} grammars for {num_rows} "
                "prompts: pass one for all or one for each"
            )
        if not (known or getattr(called, "rowwise", False)):
            raise UnsupportedRequestError(
                f"{type(called).__name__} cannot be used with several prompts: call once per "
                "prompt, or give it an attribute `rowwise = True` if it keeps no state and looks "
                "at each row by itself"
            )
