"""vLLM with the demo's model on a CPU, and how many steps it takes.

With `VLLM_USE_V2_MODEL_RUNNER=1` it is the V2 runner, whose kernels Triton interprets: slowly.
"""

import gc
import os
from time import process_time
from types import SimpleNamespace

from engines.workload import DATASTORE, NUM_TOKENS, WHOLE, measure, model_path

RUNNER = os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")

os.environ.update(
    HF_HUB_OFFLINE="1",
    OMP_NUM_THREADS="1",
    NUMBA_NUM_THREADS="1",
    VLLM_NO_USAGE_STATS="1",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_LOGGING_LEVEL="ERROR",
)
if RUNNER == "1":
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.backends import backends

    # vLLM asks for it before it runs kernels on a CPU; the interpreter needs none.
    backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True))

MAX_LENGTH = 1024


def chains(k, **options):
    ours = {"method": "custom_class", "model": "specds.integrations.vllm.Proposer"}
    method = ours if RUNNER == "0" else {"method": "ngram_gpu"}
    return {
        "speculative_config": {**method, "num_speculative_tokens": k},
        "additional_config": {"specds": {"datastore": DATASTORE, **WHOLE, **options}},
    }


def eagle(head, k):
    return {"speculative_config": {"method": "eagle", "model": head, "num_speculative_tokens": k}}


def ngrams(k):
    """Return options of vLLM for its own n-grams."""
    return {
        "speculative_config": {
            "method": "ngram",
            "num_speculative_tokens": k,
            "prompt_lookup_max": 4,
            "prompt_lookup_min": 1,
        }
    }


def schedule_ahead():
    """Let vLLM schedule ahead on a CPU too, where its platform turns this off."""
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config.__func__
    if check.__module__ == __name__:
        return

    def checked(cls, config):
        is_ahead = config.scheduler_config.async_scheduling
        check(cls, config)
        config.scheduler_config.async_scheduling = is_ahead

    CpuPlatform.check_and_update_config = classmethod(checked)


class Engine:
    """A vLLM in this process.

    `num_row_steps` counts the decode steps of its last texts, prompts included.
    """

    def __init__(self, **about):
        from vllm import LLM

        if about.get("async_scheduling"):
            schedule_ahead()
        usual = {"model": model_path(), "max_num_seqs": 4, "max_model_len": MAX_LENGTH}
        self.llm = LLM(
            enforce_eager=True,
            dtype="float32",
            enable_prefix_caching=False,
            seed=0,
            **{"async_scheduling": False, **usual, **about},
        )
        self.num_row_steps = 0
        if self.proposer is not None and RUNNER == "0":
            self.proposer.propose = self._counted(self.proposer.propose)

    def _counted(self, propose):
        def counted(*given, **more):
            # Its n-grams get a number before the tokens of each row, and a head a tensor.
            lists = (part for part in (*given, *more.values()) if isinstance(part, list))
            sampled = next(lists, more.get("next_token_ids", ()))
            self.num_row_steps += sum(row != [] for row in sampled)
            return propose(*given, **more)

        return counted

    @property
    def proposer(self):
        return getattr(self.runner, "drafter" if RUNNER == "0" else "speculator", None)

    @property
    def runner(self):
        core = self.llm.llm_engine.engine_core.engine_core
        return core.model_executor.driver_worker.worker.model_runner

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.llm.llm_engine.engine_core.shutdown()
        del self.llm
        gc.collect()

    def generate(self, prompts, max_tokens=NUM_TOKENS, structured=None, **sampling):
        """Return the texts; `structured` has the arguments of each one's structured output."""
        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams

        sampling = {"temperature": 0, "max_tokens": max_tokens, "ignore_eos": True, **sampling}
        given = [{"prompt_token_ids": ids} for ids in prompts]
        outputs = [about and StructuredOutputsParams(**about) for about in structured or ()]
        outputs = outputs or [None] * len(given)
        params = [SamplingParams(**sampling, structured_outputs=output) for output in outputs]
        self.num_row_steps, start = 0, process_time()
        outputs = self.llm.generate(given, params, use_tqdm=False)
        self.cpu_seconds = process_time() - start
        texts = [list(output.outputs[0].token_ids) for output in outputs]
        if self.proposer is None:
            self.num_row_steps = sum(map(len, texts))
        return texts


if __name__ == "__main__":
    measure(
        {
            "plain": Engine,
            "ngram, k = 8": lambda: Engine(**ngrams(8)),
            "specds, k = 8": lambda: Engine(**chains(8)),
            "specds, k = 15": lambda: Engine(**chains(15)),
        }
    )
