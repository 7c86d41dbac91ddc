"""The plug-in that vLLM calls in each of its processes.

A plug-in that raises would end every vLLM of its environment, so a version whose names have moved
starts without specds, with one warning.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from inspect import signature
from operator import attrgetter
from typing import Any

from specds.integrations.adapter import IncompatibleError, check_options, resolve
from specds.integrations.vllm import Proposer, VllmAdapter, patch_worker
from specds.integrations.vllm_combined import is_supported, wrap_proposers

_V2 = "vllm.v1.worker.gpu"
NEEDED = (
    "vllm.config:VllmConfig.__post_init__",
    f"{_V2}.spec_decode:init_speculator",
    f"{_V2}.spec_decode.speculator:BaseSpeculator",
    f"{_V2}.model_runner:GPUModelRunner.add_requests",
    f"{_V2}.model_runner:GPUModelRunner.take_draft_token_ids",
    "vllm.v1.worker.worker_base:WorkerWrapperBase.init_device",
)
"""Names of vLLM that the plug-in uses."""

FIELDS = {
    f"{_V2}.input_batch:InputBatch": ("req_ids", "num_reqs", "idx_mapping", "idx_mapping_np"),
    "vllm.v1.core.sched.output:SchedulerOutput": (
        "scheduled_new_reqs",
        "finished_req_ids",
        "scheduled_spec_decode_tokens",
        "num_invalid_spec_tokens",
    ),
    "vllm.v1.core.sched.output:NewRequestData": (
        "req_id",
        "sampling_params",
        "prompt_token_ids",
        "prefill_token_ids",
    ),
    "vllm.v1.outputs:DraftTokenIds": ("req_ids", "draft_token_ids"),
}
"""Attributes of each object that the V2 runner passes to a speculator."""
STATES = ("all_token_ids.gpu", "total_len.gpu", "req_id_to_index")
"""Attributes of the states of a runner."""


def register() -> None:
    """Install the plug-in: replace the V2 runner's factory of speculators, and wrap V1's proposers.

    A configuration whose ``specds`` key no class reads gives a warning; one that is invalid or of
    the other runner is an error before the model is loaded.
    """
    failures = []
    installs = (_replace_speculator, _verify_speculator, wrap_proposers, _check_configurations)
    for install in installs:
        try:
            install()
        except Exception as error:
            failures.append(str(error))
    if failures:
        _warn(failures)


def _warn(failures: list[str]) -> None:
    VllmAdapter.log.warning(
        "specds cannot draft in this version of vLLM, which lacks %s", "; ".join(failures)
    )


def _replace_speculator() -> None:
    make = resolve(NEEDED[1])
    if make.__module__ == __name__:
        return

    def init_speculator(vllm_config: Any, device: Any, req_states: Any) -> Any:
        if not _is_read(vllm_config):
            return make(vllm_config, device, req_states)
        try:
            speculator = _speculator_class(vllm_config.scheduler_config.async_scheduling)
            _check_states(req_states)
            _free_dense_tokens(req_states, device)
        except IncompatibleError as error:
            _warn([str(error)])
            return make(vllm_config, device, req_states)
        return speculator(vllm_config, device, req_states)

    resolve(f"{_V2}.spec_decode").init_speculator = init_speculator
    runner = sys.modules.get(f"{_V2}.model_runner")
    if runner is not None:  # another package has imported it before
        setattr(runner, "init_speculator", init_speculator)  # noqa: B010


def _verify_speculator() -> None:
    """Warn if the runner of a worker did not get its speculator from us."""
    init = resolve(NEEDED[5])
    if init.__module__ == __name__:
        return

    def init_device(self: Any) -> None:
        init(self)
        config = self.vllm_config
        if not (config.use_v2_model_runner and _is_read(config)):
            return
        speculator = getattr(self.worker.model_runner, "speculator", None)
        if type(speculator).__module__.startswith("vllm."):
            VllmAdapter.log.warning(
                "specds is not active: vLLM's runner drafts with %s", type(speculator).__name__
            )

    resolve(NEEDED[5].rpartition(".")[0]).init_device = init_device


def _free_dense_tokens(req_states: Any, device: Any) -> None:
    """Keep the tokens of all requests in memory of the host, as vLLM does with other methods.

    For its own n-grams, they are on the device: 512 MiB for 1,024 requests of 131,072 tokens.
    """
    tokens = req_states.all_token_ids
    if getattr(device, "type", None) != "cuda":
        return
    try:
        req_states.all_token_ids = type(tokens)(
            tuple(tokens.gpu.shape), dtype=tokens.gpu.dtype, device=device, uva_instead_of_gpu=True
        )
    except (TypeError, RuntimeError) as error:
        VllmAdapter.log.info("specds: the tokens of all requests stay on the device: %s", error)


def _speculator_class(is_ahead: bool | None) -> Callable[..., Any]:
    """Return the class of our speculators, after letting the runner call it.

    These modules are imported only where a model runs.
    """
    from specds.integrations.vllm_ahead import AheadSpeculator
    from specds.integrations.vllm_v2 import ChainSpeculator, widen_candidates

    base, add, take = map(resolve, NEEDED[2:5])
    _check_names(ChainSpeculator, base)
    runner = resolve(f"{_V2}.model_runner:GPUModelRunner")

    def add_requests(self: Any, scheduler_output: Any) -> None:
        if isinstance(self.speculator, ChainSpeculator):
            if self.speculator.draft_sizes is not None:
                widen_candidates(self.cudagraph_manager)
            if not self.speculator.watches_weights:
                self.speculator.watch_weights(self.get_model())
            self.speculator.begin_step(scheduler_output)
        add(self, scheduler_output)

    def take_draft_token_ids(self: Any) -> Any:
        drafts = take(self)
        is_ours = drafts is not None and isinstance(self.speculator, ChainSpeculator)
        return self.speculator.cut(drafts) if is_ours else drafts

    if add.__module__ != __name__:
        runner.add_requests, runner.take_draft_token_ids = add_requests, take_draft_token_ids
    patch_worker()
    ours = AheadSpeculator if is_ahead else ChainSpeculator
    return type("SpecdsSpeculator", (ours, base), {})


def _check_names(ours: Any, base: Any) -> None:
    """Check the attributes of vLLM's objects, and the order of the arguments of `propose`.

    Raises:
        IncompatibleError: Naming what has moved.
    """
    for name, fields in FIELDS.items():
        found = resolve(name)
        known = getattr(found, "__dataclass_fields__", ())
        for field in fields:
            if field not in known:
                raise IncompatibleError(f"{name}.{field}")
    expected, given = (list(signature(of.propose).parameters)[:9] for of in (ours, base))
    if expected != given:
        raise IncompatibleError(f"{NEEDED[2]}.propose({', '.join(expected[1:])})")


def _check_states(req_states: Any) -> None:
    for name in STATES:
        try:
            attrgetter(name)(req_states)
        except AttributeError as error:
            raise IncompatibleError(f"{_V2}.states:RequestState.{name}") from error


def _check_configurations() -> None:
    check = resolve(NEEDED[0])
    if check.__module__ == __name__:
        return

    def checked(self: Any, *args: Any) -> None:
        _check_runner(self)
        if _is_read(self) and self.speculative_config.method == "ngram_gpu":
            scheduler = self.scheduler_config
            if not getattr(self.speculative_config, "enable_adaptive_verification", False):
                # vLLM would choose one size of all drafts, without regard to their probabilities.
                scheduler.async_scheduling = bool(scheduler.async_scheduling)
            _add_draft_sizes(self)
        check(self, *args)
        if _is_read(self):
            model, options = self.model_config, self.additional_config["specds"]
            try:
                check_options(options, model.get_vocab_size(), model.tokenizer)
            except (TypeError, ValueError, OSError) as error:
                # vLLM would surround a ValueError with a list of all its settings.
                raise RuntimeError(f"`specds` of additional_config: {error}") from error
        elif "specds" in (self.additional_config or {}):
            VllmAdapter.log.warning(
                "specds is not active: vLLM's %s runner reads `specds` of `additional_config` only "
                "with %s",
                *_METHODS[self.use_v2_model_runner],
            )

    resolve("vllm.config:VllmConfig").__post_init__ = checked


def _add_draft_sizes(vllm_config: Any) -> None:
    """Let vLLM capture FULL graphs of several draft sizes, if it captures none of variable sizes.

    vLLM before 0.32 has no schedule of sizes, and ignores it with data parallelism.
    """
    config, scheduler = vllm_config.speculative_config, vllm_config.scheduler_config
    has_graphs = (
        getattr(config, "enable_adaptive_verification", False)
        or getattr(config, "num_speculative_tokens_per_batch_size", ()) is not None
    )
    is_able = (
        not (scheduler.async_scheduling or vllm_config.model_config.enforce_eager)
        and vllm_config.parallel_config.data_parallel_size == 1
        and scheduler.max_num_seqs >= _MIN_SEQS
    )
    if is_able and not has_graphs:
        config.num_speculative_tokens_per_batch_size = draft_schedule(
            config.num_speculative_tokens, scheduler.max_num_seqs
        )


_MIN_SEQS = 8
"""In smaller batches, the batch sizes of a schedule with fewer tokens would be frequent."""


def draft_schedule(k: int, max_num_seqs: int) -> list[tuple[int, int, int]]:
    """Return a schedule of vLLM with the sizes 0, k / 4, k / 2 and k.

    vLLM captures graphs of all sizes of a schedule. It is the limit of a draft in batches of these
    sizes: a full batch has k, and each of the sizes below it one of the others.
    """
    fewer = sorted({0, k // 4, k // 2} - {k}, reverse=True)
    first = max_num_seqs - len(fewer)
    others = [(first + place, first + place, size) for place, size in enumerate(fewer)]
    return [(1, first - 1, k), *others, (max_num_seqs, max_num_seqs, k)]


_V1_LINE = (
    """'{"method": "custom_class", "model": "specds.integrations.vllm.Proposer", """
    """"num_speculative_tokens": %d}'"""
)


def _check_runner(vllm_config: Any) -> None:
    """Check that the configuration of one runner is not used with the other.

    Raises:
        RuntimeError: With the line to use.
    """
    speculative = vllm_config.speculative_config
    if speculative is None:
        return
    line = _V1_LINE % (speculative.num_speculative_tokens or 8)
    is_ours = "specds" in (vllm_config.additional_config or {})
    if is_ours and speculative.method == "ngram_gpu" and not vllm_config.use_v2_model_runner:
        raise RuntimeError(
            "vLLM's V2 runner, which specds needs for `ngram_gpu`, does not run here (it needs "
            f"Triton, and a warning names other reasons): pass --speculative-config {line}"
        )
    model = str(speculative.model)
    if model.startswith("specds.") and model != f"{Proposer.__module__}.{Proposer.__name__}":
        raise RuntimeError(f"specds has no class `{model}`: pass --speculative-config {line}")


_METHODS = {
    True: ("V2", '`"method": "ngram_gpu"`'),
    False: ("V1", '`"model": "specds.integrations.vllm.Proposer"`, EAGLE, MTP or a draft model'),
}


def _is_read(vllm_config: Any) -> bool:
    """Return whether one of our classes reads the ``specds`` of a configuration."""
    speculative = vllm_config.speculative_config
    if speculative is None or "specds" not in (vllm_config.additional_config or {}):
        return False
    if vllm_config.use_v2_model_runner:
        return bool(speculative.method == "ngram_gpu")
    has_model = speculative.use_eagle() or speculative.uses_draft_model()
    return bool((has_model and is_supported()) or str(speculative.model).startswith("specds."))
