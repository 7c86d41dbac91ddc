"""vLLM's V1 model runner: chains for ``"method": "custom_class"``.

    vllm serve MODEL \
        --speculative-config '{"method": "custom_class",
            "model": "specds.integrations.vllm.Proposer", "num_speculative_tokens": 8}' \
        --additional-config '{"specds": {"datastore": "chat.specds"}}'

This is the fallback where the V2 runner does not run. The runner passes the batch as padded arrays;
names and options come from its own request table.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specds.constraints import Constraint
from specds.integrations.adapter import (
    Adapter,
    IncompatibleError,
    guarded,
    parse_request_options,
    resolve,
)
from specds.integrations.vllm_grammars import Grammars, Shadow


def require_rollback(model: Any) -> None:
    """Reject models whose recurrent states vLLM does not roll back after a rejected draft.

    The states of hybrid models are right on a GPU since vLLM 0.32. On a CPU the speculative
    configuration alone changes the text, without any draft.

    Raises:
        ValueError: Naming the reason.
    """
    is_attention_free = getattr(model, "is_attention_free", False)
    if not (is_attention_free or getattr(model, "is_hybrid", False)):
        return
    import vllm
    from vllm.platforms import current_platform

    reason, release = None, re.match(r"(\d+)\.(\d+)", vllm.__version__)
    if is_attention_free:
        reason = "it has no attention, and vLLM keeps the states of rejected tokens"
    elif any("Jamba" in name for name in getattr(model, "architectures", None) or ()):
        reason = "it has Mamba 1 layers, and vLLM keeps their states of rejected tokens"
    elif current_platform.is_cpu():
        reason = "it has recurrent layers, which vLLM on a CPU does not roll back"
    elif release and (int(release[1]), int(release[2])) < (0, 32):
        reason = "it has recurrent layers, which vLLM before 0.32 does not roll back"
    if reason is not None:
        message = f"specds cannot draft for {model.model}: {reason}"
        raise ValueError(f"{message}; start vLLM without speculative_config")


class VllmAdapter(Adapter):
    """Drafter of a worker, configured by `additional_config["specds"]`.

    Attributes:
        grammars: The compiled grammars of the worker, None if drafts ignore them.
        shadows: The constraints of requests with structured output, by name.
        watches_weights: Whether `watch_weights` has the model.
    """

    watches_weights = False

    log = logging.getLogger("vllm.specds")  # vLLM shows only loggers below its own

    def __init__(self, vllm_config: Any, *, times_steps: bool = False) -> None:
        model, group, num_threads = vllm_config.model_config, None, _num_cpu_threads()
        require_rollback(model)
        if vllm_config.parallel_config.tensor_parallel_size > 1:
            from vllm.distributed.parallel_state import get_tp_group

            group = get_tp_group()
        super().__init__(
            (vllm_config.additional_config or {}).get("specds", {}),
            vllm_config.speculative_config.num_speculative_tokens,
            vocab_size=model.get_vocab_size(),
            tokenizer=model.tokenizer,
            group=group,
            times_steps=times_steps,
            num_cpu_threads=num_threads,
            token_cost=None if num_threads is None else _CPU_TOKEN_COST,
        )
        options = (vllm_config.additional_config or {}).get("specds", {})
        parallel = getattr(vllm_config.parallel_config, "data_parallel_size", 1) > 1
        # Data-parallel ranks compute together, and would not end together.
        self.measures = times_steps and not parallel and options.get("step_cost") in _MEASURED
        self.max_length: int = model.max_model_len
        self._limits: dict[str, int] = {}
        self.grammars: Grammars | None = None
        self.shadows: dict[str, Shadow] = {}
        scheduler = vllm_config.scheduler_config
        num_tokens = scheduler.max_num_seqs * (self.max_nodes + 1)
        if num_tokens > scheduler.max_num_batched_tokens:
            self.log.warning(
                "specds: a step of %d rows with drafts has %d tokens: raise max_num_batched_tokens "
                "above %d, or rows wait",
                scheduler.max_num_seqs,
                num_tokens,
                scheduler.max_num_batched_tokens,
            )

    def watch_weights(self, model: Any) -> None:
        """Let each `load_weights` of the model reset what was learned about acceptance.

        vLLM's weight transfer, TRL and verl call this method in a running engine.
        """
        load, self.watches_weights = model.load_weights, True

        def load_weights(*args: Any, **kwargs: Any) -> Any:
            self.expect_other_acceptance()
            return load(*args, **kwargs)

        model.load_weights = load_weights

    def measure_passes(self, runner: Any) -> None:
        """Measure passes of the model, with which the first drafts have the right size.

        All ranks compute them. Only the model is measured; steps show the time of the host.
        """
        import torch

        config, is_cuda = runner.vllm_config, runner.device.type == "cuda"
        compilation, scheduler = config.compilation_config, config.scheduler_config
        has_graphs = is_cuda and not config.model_config.enforce_eager
        sizes = compilation.cudagraph_capture_sizes if has_graphs else None
        most = min(scheduler.max_num_seqs * (self.max_nodes + 1), scheduler.max_num_batched_tokens)
        usual = [1, *(n * 2**power for power in range(most.bit_length()) for n in (2, 3))]
        tried = sorted(size for size in sizes or usual if size <= most)
        fastest = dict.fromkeys(tried, float("inf"))
        deadline = perf_counter() + _MEASURING_S
        for size in [*tried[:1], *tried * _NUM_ROUNDS]:  # the very first pass warms up
            begun = self._now()
            with torch.inference_mode():
                hidden, _ = runner._dummy_run(size, skip_eplb=True)
                if hidden is not None:
                    runner.get_model().compute_logits(hidden[:size])
            if is_cuda:
                torch.cuda.synchronize()
            fastest[size] = min(fastest[size], self._now() - begun)
            if self._all_ranks(perf_counter() > deadline, runner.device):
                break
        measured = [(size, seconds) for size, seconds in fastest.items() if seconds < float("inf")]
        self.drafter.set_passes(measured)
        times = ", ".join(f"{size}: {1000 * seconds:.1f}" for size, seconds in measured)
        self.log.info("specds measured ms of passes by their tokens: %s", times)

    def _all_ranks(self, flag: bool, device: Any) -> bool:
        """Return the flag of the first rank."""
        if self.group is None:
            return flag
        import torch

        shared = torch.tensor([flag], dtype=torch.int32, device=device)
        self.group.broadcast(shared)
        return bool(shared)

    def names(self, requests: Any, batch: Any, num_rows: int) -> list[str]:
        """Return the request names of a V1 batch; end requests that the runner dropped."""
        names: list[str] = batch.req_ids[:num_rows]
        for name in names:
            if name not in self.request_options:
                request = requests[name]
                self.begin_request(name, request.sampling_params, request.prompt_token_ids)
        self.end_requests([name for name in self.request_options if name not in requests])
        return names

    def begin_request(self, name: str, sampling: Any, prompt_ids: Sequence[int] | None) -> None:
        """Read the options and the limit of a request, and begin its constraint if it has one."""
        extra = sampling and sampling.extra_args
        self.request_options[name] = parse_request_options(extra, sampling)
        self.shadows.pop(name, None)
        self._limits.pop(name, None)
        most = getattr(sampling, "max_tokens", None)
        if most is not None and prompt_ids is not None:
            self._limits[name] = len(prompt_ids) + most
        if self.grammars is not None and self.drafts:
            shadow = self.grammars.shadow(sampling, prompt_ids)
            if shadow is not None:
                self.shadows[name] = shadow

    def end_requests(self, names: Iterable[str]) -> None:
        """End the requests of these names; others are ignored."""
        ended = [name for name in names if self.request_options.pop(name, self) is not self]
        for name in ended:
            self.shadows.pop(name, None)
            self._limits.pop(name, None)
        if ended:
            self.drafter.end(ended)

    def num_left(self, names: Sequence[str], lengths: Sequence[int]) -> list[int]:
        """Return the tokens that each request may still get, by its own limit and the model's."""
        limits = (self._limits.get(name, self.max_length) for name in names)
        rows = zip(limits, lengths, strict=True)
        return [max(min(limit, self.max_length) - length, 0) for limit, length in rows]

    def constraint(self, name: str, context: Any, start: int) -> Constraint | None:
        """Pass the tokens of a row to the constraint of its request, and return it."""
        is_drafted = context is not None and self.request_options.get(name, {}) is not None
        shadow = self.shadows.get(name) if is_drafted else None
        if shadow is None:
            return None
        shadow.follow(context, start)
        return shadow.constraint


class Proposer(VllmAdapter):
    has_tenants = True

    def __init__(self, vllm_config: Any) -> None:
        super().__init__(vllm_config, times_steps=True)
        self.grammars = Grammars(vllm_config, self.log, self.max_nodes)
        self.runner: Any = None
        patch_runner()
        patch_worker()
        patch_cpu_sampling()

    def load_model(self, target_model: Any) -> None:
        """Follow changes of the model; vLLM has loaded it."""
        self.watch_weights(target_model)

    @guarded(lambda _, rows, *__, **___: [[] for _ in rows])
    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: NDArray[np.int32],
        token_ids_cpu: NDArray[np.int32],
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Draft at most `max_nodes` tokens for each row of the batch.

        Args:
            sampled_token_ids: New tokens of each row in this step; empty during its prefill.
            num_tokens_no_spec: Lengths of the rows, `(n,)` with n >= rows.
            token_ids_cpu: Tokens of the rows, `(n, max_model_len)`.

        Raises:
            IncompatibleError: The runner did not show itself.
        """
        if not self.drafts:
            return [[] for _ in sampled_token_ids]
        if self.runner is None:  # options of requests, such as `specds_off`, would be ignored
            raise IncompatibleError(f"specds cannot draft: vLLM drafts without calling {RUNNER}")
        requests = self.runner.requests
        lengths = num_tokens_no_spec[: len(sampled_token_ids)].tolist()
        tokens = token_ids_cpu.view(np.uint32)
        rows = zip(sampled_token_ids, lengths, tokens, strict=False)
        contexts = [row[:length] if emitted else None for emitted, length, row in rows]
        names = self.names(requests, self.runner.input_batch, len(contexts))
        num_verified = [requests[name].prev_num_draft_len for name in names]
        self.sync(contexts, names, num_verified=num_verified)
        with self.timed_draft(is_decoding=all(sampled_token_ids)):
            self.choose_allowed(map(self.constraint, names, contexts, [0] * len(names)))
            return self.chains(self.num_left(names, lengths))


_MEASURED = (None, "measured")
_MEASURING_S, _NUM_ROUNDS = 2.0, 3

_CPU_TOKEN_COST = 0.08
"""SmolLM2 has 0.03. Where it is 0.45, drafts that begin with 0.08 lose 0.4 % of the time."""


def _num_cpu_threads() -> int | None:
    """Return the threads of this process that compute, None if vLLM does not run on a CPU."""
    try:
        is_cpu = resolve("vllm.platforms:current_platform").is_cpu()
    except IncompatibleError:
        return None
    return resolve("torch:get_num_threads")() if is_cpu else None


RUNNER = "vllm.v1.worker.gpu_model_runner:GPUModelRunner.propose_draft_token_ids"
SAMPLING = ("expand_batch_to_tokens", "apply_top_k_top_p")


def patch_runner() -> None:
    """Let the runner show itself to a `Proposer`: it passes no names and options of requests.

    Raises:
        IncompatibleError: This version has no such method.
    """
    if find_spec("vllm") is None:
        return
    propose = resolve(RUNNER)
    if propose.__module__ == __name__:
        return

    def propose_draft_token_ids(self: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self.drafter, Proposer):
            self.drafter.runner = self
        return propose(self, *args, **kwargs)

    resolve(RUNNER.rpartition(".")[0]).propose_draft_token_ids = propose_draft_token_ids


WORKERS = ("vllm.v1.worker.gpu_worker:Worker", "vllm.v1.worker.cpu_worker:CPUWorker")
WARM_UP = "compile_or_warm_up_model"
CHANGES = ("wake_up", "reload_weights", "finish_weight_update")
"""Methods of a worker after which the model may have other weights, also without `load_weights`."""


def patch_worker() -> None:
    """Let a worker measure passes after its warm-up, and report that weights may have changed."""
    if find_spec("vllm") is None:
        return
    measuring = ((worker, WARM_UP, _measure) for worker in WORKERS)
    changing = ((WORKERS[0], name, _weights_changed) for name in CHANGES)
    for worker, name, then in (*measuring, *changing):
        try:
            call = resolve(f"{worker}.{name}")
        except IncompatibleError as error:
            VllmAdapter.log.warning("specds lacks a call of this version of vLLM: %s", error)
            continue
        if call.__module__ != __name__:
            setattr(resolve(worker), name, _followed(call, then))


def _followed(call: Any, then: Callable[..., None]) -> Any:
    """Return a method of a worker that then calls the adapter of its runner, if that has one."""

    @functools.wraps(call, assigned=("__name__", "__doc__"))
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = call(self, *args, **kwargs)
        runner = self.model_runner
        drafter = getattr(runner, "speculator", None) or getattr(runner, "drafter", None)
        adapter = getattr(drafter, "specds", drafter)
        if isinstance(adapter, VllmAdapter):
            then(adapter, runner)
        return result

    return method


def _measure(adapter: VllmAdapter, runner: Any) -> None:
    if adapter.measures:
        adapter.measure_passes(runner)


def _weights_changed(adapter: VllmAdapter, _: Any) -> None:
    adapter.expect_other_acceptance()


def patch_cpu_sampling() -> None:
    """Patch vLLM's sampling of drafted tokens on a CPU (vllm-project/vllm#55005).

    Without it, vLLM never writes expanded values, and crashes on `top_k` without `top_p`.

    Raises:
        IncompatibleError: This version samples drafted tokens in another way.
    """
    if find_spec("vllm") is None:
        return
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    module = "vllm.v1.sample.rejection_sampler"
    _, apply = (resolve(f"{module}:{name}") for name in SAMPLING)
    if apply.__module__ == __name__:
        return

    def expand(x: Any, ends: Any, size: int, replace_from: int = 0, replace_to: int = 0) -> Any:
        counts = ends.diff(prepend=ends.new_zeros(1))
        expanded = x.repeat_interleave(counts.long(), output_size=size)
        return expanded.where(expanded != replace_from, replace_to) if replace_from else expanded

    def apply_top_k_top_p(logits: Any, k: Any, p: Any) -> Any:
        return apply(logits, k, p) if len(logits) else logits

    for name, patched in zip(SAMPLING, (expand, apply_top_k_top_p), strict=True):
        setattr(resolve(module), name, patched)
    VllmAdapter.log.info("specds patches vLLM's sampling of drafts on a CPU (vllm#55005)")
