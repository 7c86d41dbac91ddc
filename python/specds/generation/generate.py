"""`generate`, for models of transformers and for GGUF files without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from specds._core import Session
from specds.constraints.processor import add_grammar
from specds.drafters.fused import FusedDrafter
from specds.drafters.step import Step
from specds.generation.decode import GenerationOutput
from specds.generation.default_source import with_default
from specds.generation.options import DrafterLike, Options
from specds.generation.prompt_values import note_tokenizer
from specds.generation.runner import Verification
from specds.generation.target import target_of

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase
    from transformers.generation.streamers import BaseStreamer


def generate(
    model: Any,
    input_ids: torch.Tensor | Any = None,
    drafter: DrafterLike = None,
    *,
    inputs: torch.Tensor | Any = None,
    max_nodes: int | Literal["auto"] = "auto",
    verification: Verification = "auto",
    check_model: bool = True,
    synchronize_timings: bool = False,
    stream_interval: int | None = None,
    shape_invariant: bool = False,
    on_step: Callable[[Step], object] | None = None,
    on_prefill: Callable[[int, int], object] | None = None,
    session: Session | None = None,
    grammar: Any = None,
    seed: int | None = None,
    streamer: BaseStreamer | Any = None,
    tokenizer: PreTrainedTokenizerBase | Any = None,
    stop_strings: str | list[str] | None = None,
    **kwargs: Any,
) -> GenerationOutput:
    """Generate what ``model.generate(input_ids, **kwargs)`` would, in fewer target forward passes.

    Greedy decoding gives the same tokens, and sampling the same tokens from the same seed. Only in
    half precision may near-ties break differently, because rounding depends on the shape of a
    forward pass.

    Args:
        model: A decoder-only transformers model in eval mode, or a `GgufModel`, which decodes one
            prompt without torch: tensors are arrays, and the settings are those of `Sampling`,
            lengths, stop strings and criteria.
        input_ids: int64 `(num_rows, prompt_length)`, padded on the left with an `attention_mask`.
            Each row has its own tree, and processors and criteria are called for each row alone.
        drafter: Drafts the trees, with one session a row. A datastore or its path makes a
            `FusedDrafter`; None makes one that drafts from the request, and from
            `specds.default_datastore` once that is built.
        inputs: Another name of `input_ids`, as in `model.generate`.
        max_nodes: Maximum nodes of a draft to verify; 0 decodes without drafts. `auto` uses the
            drafter's own `max_nodes`, if it has one. Otherwise each step verifies as many nodes as
            pay off, up to 63, by the expected gain and the times of the steps so far, which all
            requests of the model share. The text does not depend on it; acceptance lengths do.
        verification: The verification backend. `native` computes the model in Rust, after prompts;
            `packed` runs all rows as one sequence with our own attention; `model` runs the model as
            transformers does, with a tree mask. `auto` is the first of `native`, `packed` and
            `model` that supports the model on a CPU; on CUDA devices of capability 9.0 (H100) the
            first of the last two; on other devices `model`. `stats.reason` says why. Models that
            keep a recurrent state are verified by `chain`: drafts without branches, through the
            model's own cache. A class of a runner, such as `specds.papers.PathRows`, is
            accepted too.
        check_model: Before the model's first use, compare one forward pass over a small tree with
            forward passes over its paths (see `specds.verify.check_model`).
        synchronize_timings: Synchronize with a CUDA device at each reading of the clock, so that
            the times in `stats` are exact. This costs speed.
        stream_interval: Hide how many tokens each step emitted, from which an observer can
            learn about the text. The streamer gets this many tokens at once (fewer at the end), and
            each step computes exactly `max_nodes`, an integer below `stream_interval`. The time
            between releases still varies.
        shape_invariant: Make the text of a single row independent of the drafts in half precision
            too. All forward passes have one shape, `max_nodes` (an integer) by `max_length` slots,
            and drafts are chains. This is slower, and near-ties may break differently from the
            baseline. Tested on a CPU; other devices verify with `model`.
        on_step: Called with each `Step` of each row, including the prefill: the draft, its accepted
            nodes, and the emitted tokens with their sources.
        on_prefill: Called with the tokens of the prompts that are read and with all of them: first
            with 0, then after each part, and by `native` several times a second. An exception that
            it raises ends the request.
        session: A session of the drafter that has observed the only prompt. It observes the emitted
            tokens and is not finished, so that another request can continue it. By default each
            row has its own session.
        grammar: What the text must match: an `xgrammar.CompiledGrammar` or an
            `llguidance.LLMatcher`, which stays as it is; a list has one for each row, None for no
            grammar. Drafts follow it, as they follow `xgrammar.contrib.hf.LogitsProcessor` and
            `prefix_allowed_tokens_fn`.
        seed: Seeds the random generator before the request: torch's, or that of a model without
            torch.
        streamer: Receives the prompts and each token, as from `model.generate`; with several rows,
            one token of each row at a time.
        tokenizer: Needed for `stop_strings`; a notebook shows the output's text by it.
        stop_strings: Ends the text at any of these.
        **kwargs: The other arguments of `model.generate` for greedy decoding and sampling, such as
            `max_new_tokens`, `do_sample`, `logits_processor`, `generation_config`. `cache` (or
            `past_key_values`) is a `DynamicCache` with the states of the beginning of the only
            prompt. These are not computed again, and the states of all tokens but the last are
            added to it.

    Raises:
        UnsupportedModelError: A tree cannot be verified on `model`.
        UnsupportedRequestError: An argument cannot be served with drafts, such as beams.
        TypeError: `model` is not a model, or `input_ids` is not a tensor of token ids.
        ValueError: An argument is invalid.
    """
    if inputs is not None:
        if input_ids is not None:
            raise ValueError("input_ids and inputs are the same: give one of them")
        input_ids = inputs
    if drafter is None and session is None and max_nodes != 0:
        drafter = with_default(FusedDrafter(), model, tokenizer)
    options = Options.of(
        drafter,
        max_nodes=max_nodes,
        verification=verification,
        check_model=check_model,
        synchronize_timings=synchronize_timings,
        stream_interval=stream_interval,
        shape_invariant=shape_invariant,
        on_step=on_step,
        on_prefill=on_prefill,
        session=session,
        grammar=grammar,
    )
    add_grammar(grammar, kwargs)
    if tokenizer is not None:
        note_tokenizer(model, tokenizer)
    kwargs |= {"streamer": streamer, "tokenizer": tokenizer, "stop_strings": stop_strings}
    return target_of(model).generate(input_ids, options, seed, **kwargs)
