"""Checks of models for verification: their configuration, and a test run."""

import inspect
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
import transformers
from torch.nn.modules.dropout import _DropoutNd
from transformers import PreTrainedModel
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from transformers.integrations.fsdp import is_fsdp_managed_module

from specds._core import TokenTree
from specds.generation.native import NativeRunner, runner_of
from specds.generation.runner import (
    UnsupportedModelError,
    Verification,
    Verifier,
    require_verification,
)
from specds.transformers.native_model import NativeModel
from specds.transformers.verify.cache import CACHE_NAME
from specds.transformers.verify.chain import ChainRunner
from specds.transformers.verify.fused_forward import unfused_reason
from specds.transformers.verify.generic import Runner
from specds.transformers.verify.in_place import InPlaceRunner
from specds.transformers.verify.inputs import CONVOLUTION, LAYER_TYPES, layer_types, local_attention
from specds.transformers.verify.packed import PackedRunner
from specds.transformers.verify.recordings import autocast_dtype
from specds.transformers.verify.selection import SPARSE_PROMPT, selecting, selections

_ATTENTION = {"sdpa", "eager"}
# Enough slots for three splits of the attention kernel, whose results are merged.
_SPLIT_PROMPT = 330
# Compute capabilities of the devices on which `make test-gpu` has passed.
_PROVEN = {(9, 0)}
_UNPROVEN = "`packed` is not tested on this kind of device: pass verification='packed' to use it"


@dataclass(frozen=True)
class Support:
    """Result of `check_model`.

    Attributes:
        ok: Whether drafts can be verified on the model.
        reasons: Why they cannot; empty if `ok`.
        max_error: Largest error of a node in one pass over a tree, compared with passes over its
            paths: root mean square, divided by the standard deviation of the logits. None if no
            pass was run or it failed.
    """

    ok: bool
    reasons: tuple[str, ...]
    max_error: float | None


# Results of the test run of a model, by verification backend.
_checked: WeakKeyDictionary[torch.nn.Module, dict[type[Verifier], Support]] = WeakKeyDictionary()
_log = logging.getLogger("specds")
# The warnings that were given for a model, and the lines that were logged.
_warned: WeakKeyDictionary[torch.nn.Module, set[str]] = WeakKeyDictionary()


def check_model(model: PreTrainedModel, *, verification: Verification = "model") -> Support:
    """Check a model by its configuration, then by running it over a small tree.

    The logits of one pass over eight nodes are compared with passes over the tree's paths, which
    use neither our cache nor our masks: three forward passes over about twenty tokens, or over
    enough to cross windows of at most 512 tokens. By chains, passes of several
    tokens, of one, and after a rejection are compared with one pass; sparse attention selects 16
    keys, then 8, for the time of the check. With our attention kernel there are 330 tokens, and a
    second pass over the tree must equal the first to the bit.

    Args:
        model: The model.
        verification: The verification backend.

    Raises:
        ValueError: `verification` is not a backend.
        torch.OutOfMemoryError: Memory is short, which does not depend on the model's support.
    """
    require_verification(verification, RUNNERS)
    runner_class = _runner_class(model, verification)
    if reasons := unsupported_reasons(model, verification):
        return Support(False, tuple(reasons), None)
    config = model.config.get_text_config(decoder=True)
    kinds = [kind for kind in layer_types(config) if kind in LAYER_TYPES]
    limits = (local_attention(kind, config) for kind in kinds)
    windows = [limit.window or limit.chunk or 0 for limit in limits]
    windows.append(getattr(config, "sliding_window", None) or 0)
    if isinstance(model, NativeModel):
        windows = []  # passes of the core are tested for all, and are slow on a CPU
    prompt_length = max([12, *(window + 3 for window in windows if window <= 512)])
    if _has_kernel(model, runner_class):
        most = getattr(config, "max_position_embeddings", None) or _SPLIT_PROMPT
        prompt_length = max(prompt_length, min(_SPLIT_PROMPT, most - 2 * len(_PARENTS)))
    of_trees = runner_class.takes_trees
    measured, drafts = (tree_error, "tree") if of_trees else (chain_error, "chain")
    chosen = () if isinstance(model, NativeModel) else selections(model)
    try:
        error = 0.0 if chosen else measured(model, prompt_length, runner_class)
        for number in chosen:
            with selecting(model, number):
                found = measured(model, max(prompt_length, SPARSE_PROMPT), runner_class)
            error = max(error, found)
    except torch.OutOfMemoryError:
        raise
    except Exception as failure:
        _log.info("a forward pass over a %s failed", drafts, exc_info=failure)
        detail = failure if isinstance(failure, ValueError) else type(failure).__name__
        return Support(False, (f"a forward pass over a {drafts} failed: {detail}",), None)
    allowed = 0.0 if isinstance(model, NativeModel) else allowed_error(model)
    if error <= allowed:
        return Support(True, (), error)
    reason = f"logits over a {drafts} differ from plain ones by {error:.2g} of their spread, "
    reason += f"more than {allowed:.2g}; if that is the model's own rounding, "
    reason += "pass `check_model=False`"
    return Support(False, (reason,), error)


def allowed_error(model: PreTrainedModel) -> float:
    """Return the error of logits that rounding may cause, in parts of their spread."""
    dtype = autocast_dtype(model.device) or model.dtype
    # Norms and rotary angles are float32 in most models, whatever the dtype.
    resolution = max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
    if dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest":
        resolution = 2.0**-10  # TensorFloat-32 keeps ten bits
    # Half of the digits: rounding stays below it, a wrong mask or position far above.
    return float(resolution**0.5)


def require_support(
    model: PreTrainedModel, *, verification: Verification = "model", check_model: bool = True
) -> tuple[type[Verifier], str]:
    """Return the verification backend for a model on which drafts can be verified.

    With `check_model` each model is run once for each backend.

    Returns:
        The backend, and why `auto` did not choose the fastest one of the device. On a
        CUDA device, if the model is the reason, a warning says so once.

    Raises:
        UnsupportedModelError: Drafts cannot be verified; the message has the reasons.
        ImportError: The installed transformers is too old.
    """
    if tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 19):
        raise ImportError(
            f"specds needs transformers 5.19 or newer, found {transformers.__version__}: "
            "run `pip install 'transformers>=5.19'`"
        )
    if verification == "auto":
        candidates, why = _candidates(model)
    else:
        candidates, why = [_runner_class(model, verification)], ""
    for runner in candidates:
        reasons = _reasons(model, runner, check_model)
        if not reasons:
            break
        why = why or "; ".join(reasons)
    if reasons:
        raise _unsupported(model, runner, reasons)
    warns = model.device.type != "cpu"
    if warns and why not in {"", _UNPROVEN, *_warned.setdefault(model, set())}:
        _warned[model].add(why)
        message = f"drafts are verified by {runner.name!r} and not by {candidates[0].name!r}"
        warnings.warn(f"{message}, which is faster: {why}", stacklevel=2)
    # A GGUF file that transformers has converted.
    return runner, why or getattr(model, "not_native", "")


def _candidates(model: Any) -> tuple[list[type[Verifier]], str]:
    """Return the backends that `auto` tries, the fastest first, and why a faster one is not."""
    if isinstance(model, NativeModel):
        return [runner_of(model)], ""
    if recurrent := recurrent_runner(model):
        return [ChainRunner] if recurrent is ChainRunner else [recurrent, ChainRunner], ""
    if model.device.type == "cpu":
        # Our attention is faster than the model's after long contexts.
        return [InPlaceRunner, PackedRunner, Runner], ""
    return ([PackedRunner, Runner], "") if _is_proven(model.device) else ([Runner], _UNPROVEN)


def require_family(model: Any, verification: Verification = "auto") -> None:
    """Check that no lasting property of a model rules out drafts; runs nothing.

    Settings that can change, such as training mode, are checked when a request begins.

    Raises:
        UnsupportedModelError: One does; the message has the reasons.
    """
    if not (isinstance(model, PreTrainedModel) or hasattr(model, "active_peft_config")):
        return
    if verification == "auto":
        runner: type[Verifier] = recurrent_runner(model) or Runner
    else:
        runner = _runner_class(model, verification)
    if reasons := _lasting_reasons(model, runner.takes_trees):
        raise _unsupported(model, runner, reasons)


def _unsupported(
    model: Any, runner: type[Verifier], reasons: Sequence[str]
) -> UnsupportedModelError:
    what = f"{type(model).__name__} cannot verify drafts by {runner.name!r}"
    return UnsupportedModelError(f"{what}: {'; '.join(reasons)}")


def log_once(model: Any, message: str, level: int = logging.INFO) -> None:
    """Log a message to the logger `specds`, once for each model."""
    logged = _warned.setdefault(model, set()) if isinstance(model, torch.nn.Module) else set()
    if message not in logged:
        logged.add(message)
        _log.log(level, message)


def _is_proven(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) in _PROVEN


def _reasons(model: PreTrainedModel, runner: type[Verifier], runs: bool) -> Sequence[str]:
    reasons = unsupported_reasons(model, runner)
    if reasons or not runs:
        return reasons
    checked = _checked.setdefault(model, {})
    found = checked.get(runner) or check_model(model, verification=runner)
    if found.max_error is not None:  # a pass that failed may not fail the next time
        checked[runner] = found
    return found.reasons


RUNNERS = {each.name: each for each in (PackedRunner, Runner, ChainRunner, InPlaceRunner)}
"""The verification backends by name."""


def _runner_class(model: Any, verification: Verification) -> type[Verifier]:
    if not isinstance(verification, str):
        return verification
    found = RUNNERS[verification]
    return runner_of(model) if found is InPlaceRunner and isinstance(model, NativeModel) else found


def unsupported_reasons(model: PreTrainedModel, verification: Verification = "model") -> list[str]:
    """Return the reasons in a model's configuration against verifying drafts on it."""
    config = model.config.get_text_config(decoder=True)
    runner_class = _runner_class(model, verification)
    if isinstance(model, NativeModel):
        of_core = issubclass(runner_class, NativeRunner)
        return [] if of_core else ["the core computes it: use verification='native'"]
    lasting = _lasting_reasons(model, runner_class.takes_trees)
    reasons = [*_training_reasons(model, config), *lasting]
    is_zero3: Any = is_deepspeed_zero3_enabled
    num = getattr(model, "_tp_size", None) or 1
    if (is_fsdp_managed_module(model) or is_zero3()) and torch.distributed.is_initialized():
        num = torch.distributed.get_world_size()
    if num > 1:
        reasons.append("its weights are spread over processes, and each of them drafts by itself")
    if not issubclass(runner_class, Runner):
        return reasons
    # Other backends read prompts by the model's own attention, and trees by our own.
    if config._attn_implementation not in _ATTENTION and runner_class.needs_mask:
        reasons.append(
            f"attention {config._attn_implementation!r} takes no tree mask: load the model with "
            "`attn_implementation='sdpa'` or 'eager', or use verification='packed'"
        )
    return reasons if lasting else [*reasons, *runner_class.reasons_against(model)]


def _lasting_reasons(model: PreTrainedModel, takes_trees: bool) -> list[str]:
    """Return the reasons that stay, whatever is set on the model later."""
    config = model.config.get_text_config(decoder=True)
    of_family = _family_reasons if takes_trees else _chain_reasons
    return [*_prompt_reasons(model), *of_family(model, config)]


def _has_kernel(model: PreTrainedModel, runner: type[Verifier]) -> bool:
    return issubclass(runner, Runner) and runner.has_kernel(model)


_OF_A_FAMILY = {
    "git": "it widens the mask of padded prompts by the tokens of an image",
    "gpt_neox_japanese": "its attention takes no view of a cache of several rows",
}


def _family_reasons(model: PreTrainedModel, config: Any) -> Iterator[str]:
    if model.config.is_encoder_decoder:
        yield "it is an encoder-decoder model"
    way_out = "" if [*_chain_reasons(model, config)] else ": use verification='chain'"
    if others := sorted({*layer_types(config)} - LAYER_TYPES - {CONVOLUTION}):
        yield f"layers of type {', '.join(others)} do not attend over a KV cache{way_out}"
    elif model._is_stateful or not model._supports_default_dynamic_cache():  # type: ignore[operator]
        yield f"its recurrent state cannot drop a rejected branch{way_out}"
    nested = getattr(config, "attn_config", None)  # of mpt
    has_alibi = getattr(config, "alibi", False) or getattr(nested, "alibi", False)
    if has_alibi or config.model_type == "bloom":
        yield "its alibi biases count cache slots, not positions in the tree"
    elif "position_ids" not in inspect.signature(_base(model).forward).parameters:
        yield "its forward takes no `position_ids`"
    if getattr(config, "attn_temperature_tuning", False):
        yield "it scales queries by cache slots, not positions in the tree"
    if config.model_type in _OF_A_FAMILY:
        yield _OF_A_FAMILY[config.model_type]
    if "local" in getattr(config, "attention_layers", ()):
        yield "its local attention counts cache slots, not positions in the tree"
    for scaling in _rotations(config):
        if (rope_type := scaling.get("rope_type")) in ("dynamic", "longrope"):
            yield f"rope type {rope_type} depends on the length of the deepest branch"
        if "mrope_section" in scaling:
            yield "its rotary positions have several dimensions (mrope)"


def _rotations(config: Any) -> list[dict[str, Any]]:
    """Return the parameters of rotations: one dictionary, or one per layer type."""
    parameters = getattr(config, "rope_parameters", None) or {}
    return [of for of in parameters.values() if isinstance(of, dict)] or [parameters]


def recurrent_runner(model: PreTrainedModel) -> type[Runner] | None:
    """Return what verifies a model with recurrent layers: convolutions alone also take trees."""
    if not is_recurrent(model):
        return None
    config = model.config.get_text_config(decoder=True)
    has_convolutions = CONVOLUTION in layer_types(config)
    has_trees = has_convolutions and not [*_family_reasons(model, config)]
    return Runner if has_trees else ChainRunner


def is_recurrent(model: PreTrainedModel) -> bool:
    """Return whether layers keep more than keys and values, so that trees cannot be verified."""
    config = model.config.get_text_config(decoder=True)
    has_cache: bool = model._supports_default_dynamic_cache()  # type: ignore[operator]
    return model._is_stateful or not has_cache or not {*layer_types(config)} <= LAYER_TYPES


def _chain_reasons(model: PreTrainedModel, config: Any) -> Iterator[str]:
    if model.config.is_encoder_decoder:
        yield "it is an encoder-decoder model"
    if CACHE_NAME not in inspect.signature(_base(model).forward).parameters:
        yield f"its forward takes no `{CACHE_NAME}`"
    if config.model_type in ("falcon_mamba", "jamba", "mamba", "zamba"):
        yield "it loses its state in passes of several tokens (0.4 to 1.4 of the logits' spread)"
    # In half precision the check would not see it: rounding is larger.
    if config.model_type in ("nemotron_h", "zamba2"):
        yield "it bounds time steps only in passes of several tokens (0.001 of the logits' spread)"
    if config.model_type == "minimax" and layer_types(config)[0] != "full_attention":
        yield "it counts cached tokens by its first layer, which has no keys"
    for scaling in _rotations(config):
        if (rope_type := scaling.get("rope_type")) in ("dynamic", "longrope"):
            yield f"rope type {rope_type} depends on the length of a rejected draft"


def _base(model: Any) -> Any:
    """Return the model that a PEFT model wraps, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _prompt_reasons(model: Any) -> Iterator[str]:
    """Yield the reason against PEFT's prompt learning, whose prompts are not tokens."""
    prepare = getattr(model, "prepare_inputs_for_generation", None)
    # PEFT passes the base model to `generate`, with this method of its own.
    for part in (model, getattr(prepare, "__self__", None)):
        config: Any = getattr(part, "active_peft_config", None)
        if getattr(config, "is_prompt_learning", False):
            kind = getattr(config.peft_type, "value", config.peft_type)
            yield f"PEFT's prompt learning ({kind}) puts states before the prompt"
            return


def _training_reasons(model: PreTrainedModel, config: Any) -> Iterator[str]:
    """Yield the reasons against a model in training mode, in which some trainers generate."""
    if not model.training:
        return
    settings = {**vars(model.config), **vars(config)}
    random = {name for name in settings if "drop" in name or "jitter" in name}
    active = any(isinstance(settings[name], float) and settings[name] > 0 for name in random)
    if active or any(isinstance(part, _DropoutNd) and part.p > 0 for part in model.modules()):
        yield "it is in training mode, where dropout is random: call `model.eval()`"
    elif any(getattr(part, "gradient_checkpointing", False) for part in model.modules()):
        yield "it is in training mode with gradient checkpointing, which keeps no KV cache"


# Three branches of three nodes, two of them with the same first node. The nodes of a branch are
# not adjacent, so that a mask by slots instead of ancestors is caught.
_PARENTS = (-1, -1, 0, 0, 1, 2, 3, 4)


@torch.no_grad()
def tree_error(
    model: PreTrainedModel, prompt_length: int, runner_class: type[Verifier] = Runner
) -> float:
    """Run a small tree in both ways of `check_model`, and return `Support.max_error`."""
    vocab_size = int(model.config.get_text_config(decoder=True).vocab_size)
    num_tokens = prompt_length + 1 + len(_PARENTS)
    # Spread over the vocabulary by a prime: adjacent tokens differ, and every run has the same.
    token_ids = (np.arange(num_tokens) * 1_000_003 + 13) % vocab_size
    known, nodes = np.split(token_ids, [prompt_length + 1])
    tree = TokenTree(nodes, _PARENTS)
    paths = np.stack([np.concatenate((known, nodes[path])) for path in tree.paths()])
    ids = torch.from_numpy(paths).to(model.device)
    # The positions that `generate` passes.
    positions = torch.arange(ids.shape[1], device=model.device).expand_as(ids)
    plain = model(input_ids=ids, position_ids=positions, use_cache=False).logits
    if not plain.isfinite().all():
        way_out = ": load it in bfloat16" if plain.dtype == torch.float16 else ""
        raise ValueError(f"the model's own logits are not finite in {plain.dtype}{way_out}")

    sizes = {"prompt_length": prompt_length, "max_length": num_tokens, "max_nodes": len(tree)}
    with closing(runner_class(model, **sizes)) as runner:
        runner.prefill_rows([torch.from_numpy(known[None, :-1])])
        found = runner.verify_rows([int(known[-1])], [tree])[0]
        rows = torch.from_numpy(found) if isinstance(found, np.ndarray) else found.clone()
        # Sums over experts have no fixed order, so they may differ by rounding.
        if _has_kernel(model, runner_class) and not unfused_reason(model):
            again = runner.verify_rows([int(known[-1])], [tree])[0]
            if not torch.equal(rows, again):
                raise RuntimeError("a second pass over the same tree gave other logits")
    of_tree = torch.stack([rows[[0, *(1 + path)]] for path in tree.paths()]).float()
    expected = plain[:, -of_tree.shape[1] :].float()
    differences = (of_tree - expected).square().mean(dim=-1).sqrt()
    return float(differences.max() / expected.std())


# Nodes of the passes of a check, and how many of them are accepted: passes of several tokens, a
# rejection, accepted tokens fed again, and passes of one token, which some models do otherwise.
_CHAINS = ((6, 6), (6, 2), (3, 3), (0, 0), (4, 0), (0, 0), (0, 0))


@torch.no_grad()
def chain_error(model: PreTrainedModel, prompt_length: int, runner_class: type[Verifier]) -> float:
    """Verify chains of which a part is rejected, and return `Support.max_error`."""
    num_tokens = prompt_length + sum(1 + accepted for _, accepted in _CHAINS)
    vocab_size = int(model.config.get_text_config(decoder=True).vocab_size)
    ids = (np.arange(num_tokens) * 1_000_003 + 13) % vocab_size
    plain = model(torch.from_numpy(ids)[None].to(model.device), use_cache=False).logits[0].float()
    sizes = {"prompt_length": prompt_length, "max_length": num_tokens, "max_nodes": 8}
    found = []
    with closing(runner_class(model, **sizes)) as runner:
        runner.prefill_rows([torch.from_numpy(ids[None, :prompt_length])])
        place = prompt_length
        for num_nodes, accepted in _CHAINS:
            nodes = ids[place + 1 :][:num_nodes].copy()
            nodes[accepted:] = (nodes[accepted:] + 1) % vocab_size
            chain = TokenTree(nodes, range(-1, len(nodes) - 1))
            (logits,) = runner.verify_rows([int(ids[place])], [chain])
            found.append(torch.as_tensor(logits[: 1 + accepted]).float())
            runner.commit_rows([range(accepted)])
            place += 1 + accepted
    differences = (torch.cat(found) - plain[prompt_length:]).square().mean(dim=-1).sqrt()
    return float(differences.max() / plain[prompt_length:].std())
