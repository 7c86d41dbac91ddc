"""The plug-in that vLLM calls in each of its processes.

A plug-in that raises would end every vLLM of its environment, so a version whose names have moved
starts without specds, with one warning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specds._core import EngineDrafter
from specds.integrations.adapter import IncompatibleError, resolve
from specds.integrations.vllm import VllmAdapter
from specds.integrations.vllm_combined import is_supported, wrap_proposers

_V2 = "vllm.v1.worker.gpu"
NEEDED = (
    "vllm.config:VllmConfig.__post_init__",
    f"{_V2}.spec_decode:init_speculator",
    f"{_V2}.spec_decode.speculator:BaseSpeculator",
    f"{_V2}.model_runner:GPUModelRunner.add_requests",
    f"{_V2}.model_runner:GPUModelRunner.take_draft_token_ids",
)
"""Names of vLLM that the plug-in uses."""


def register() -> None:
    """Install the plug-in: replace the V2 runner's factory of speculators, and wrap V1's proposers.

    A configuration whose ``specds`` key no class reads gives a warning, an invalid one an error.
    """
    failures = []
    for install in (_replace_speculator, wrap_proposers, _check_configurations):
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
            speculator = _speculator_class()
        except IncompatibleError as error:
            _warn([str(error)])
            return make(vllm_config, device, req_states)
        return speculator(vllm_config, device, req_states)

    resolve(f"{_V2}.spec_decode").init_speculator = init_speculator


def _speculator_class() -> Callable[..., Any]:
    """Return the class of our speculators, after letting the runner call it.

    These modules are imported only where a model runs.
    """
    from specds.integrations.vllm_v2 import ChainSpeculator

    base, add, take = map(resolve, NEEDED[2:])
    runner = resolve(f"{_V2}.model_runner:GPUModelRunner")

    def add_requests(self: Any, scheduler_output: Any) -> None:
        if isinstance(self.speculator, ChainSpeculator):
            self.speculator.begin_step(scheduler_output)
        add(self, scheduler_output)

    def take_draft_token_ids(self: Any) -> Any:
        drafts = take(self)
        is_ours = drafts is not None and isinstance(self.speculator, ChainSpeculator)
        return self.speculator.cut(drafts) if is_ours else drafts

    if add.__module__ != __name__:
        runner.add_requests, runner.take_draft_token_ids = add_requests, take_draft_token_ids
    return type("SpecdsSpeculator", (ChainSpeculator, base), {})


def _check_configurations() -> None:
    check = resolve(NEEDED[0])
    if check.__module__ == __name__:
        return

    def checked(self: Any, *args: Any) -> None:
        if _is_read(self) and self.speculative_config.method == "ngram_gpu":
            # Drafting waits for the device, so scheduling ahead of it gains nothing.
            scheduler = self.scheduler_config
            scheduler.async_scheduling = bool(scheduler.async_scheduling)
        check(self, *args)
        if _is_read(self):
            # Raises before the model is loaded. Only the drafter reads the snapshot.
            about = {"vocab_size": self.model_config.get_vocab_size(), "times_steps": True}
            about |= {"snapshot": None, "sync_interval": None}
            EngineDrafter(**{**self.additional_config["specds"], **about}).close()
        elif "specds" in (self.additional_config or {}):
            VllmAdapter.log.warning(
                "specds is not active: vLLM's %s runner reads `specds` of `additional_config` only "
                "with %s",
                *_METHODS[self.use_v2_model_runner],
            )

    resolve("vllm.config:VllmConfig").__post_init__ = checked


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
