"""SGLang with the demo's model on a CPU, and how many steps it takes.

Its kernels are stand-ins: what it takes in seconds says nothing of SGLang.
"""

import json
import os

os.environ.update(SGLANG_USE_CPU_ENGINE="1", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")

import psutil

from engines.workload import DATASTORE, NUM_TOKENS, WORK, measure, model_path

STATS = WORK / "sglang-stats.json"


class Engine:
    """An engine in processes of its own.

    `algorithm` is SGLang's; `options` configure specds in it, without them it is the built-in one.
    `num_row_steps` counts the decode steps of its last texts, prompts included.
    """

    def __init__(self, algorithm=None, num_nodes=15, options=None, sabotage="", **about):
        import sglang

        os.environ.pop("SPECDS_CONFIG", None)
        os.environ.update(SPECDS_TEST_STATS=str(STATS), SPECDS_TEST_SABOTAGE=sabotage)
        STATS.unlink(missing_ok=True)
        if options is not None:
            os.environ["SPECDS_CONFIG"] = json.dumps({"datastore": DATASTORE, **options})
        if algorithm is not None:
            about |= {
                "speculative_algorithm": algorithm,
                "speculative_num_draft_tokens": num_nodes + 1,
                "speculative_ngram_max_bfs_breadth": 8,
            }
        about = {"max_running_requests": 4, "max_total_tokens": 8192, **about}
        self.engine = sglang.Engine(
            model_path=model_path(),
            device="cpu",
            dtype="float32",
            attention_backend="torch_tree",
            disable_overlap_schedule=True,
            skip_server_warmup=True,
            log_level="error",
            **about,
        )

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.engine.shutdown()

    @property
    def stats(self):
        """The drafter's counters, and how many of its calls failed."""
        return json.loads(STATS.read_text())

    def generate(self, prompts, max_tokens=NUM_TOKENS, adapters=None, structured=None, **sampling):
        """Return the texts; `structured` has the parameters of each one's structured output."""
        sampling = {"temperature": 0, "max_new_tokens": max_tokens, "ignore_eos": True, **sampling}
        params = [sampling | (about or {}) for about in structured or [None] * len(prompts)]
        start = cpu_seconds()
        outputs = self.engine.generate(
            input_ids=prompts, sampling_params=params, lora_path=adapters
        )
        self.cpu_seconds = cpu_seconds() - start
        told = [output["meta_info"] for output in outputs]
        texts = [output["output_ids"] for output in outputs]
        steps = [
            about.get("spec_verify_ct", len(text) - 1)
            for about, text in zip(told, texts, strict=True)
        ]
        self.num_row_steps = sum(steps) + len(texts)
        self.num_cached = sum(about["cached_tokens"] for about in told)
        self.num_retractions = sum(about["num_retractions"] for about in told)
        return texts


def cpu_seconds():
    """Return the CPU time of this process and its children."""
    own = psutil.Process()
    times = [process.cpu_times() for process in [own, *own.children(recursive=True)]]
    return sum(time.user + time.system for time in times)


if __name__ == "__main__":
    measure(
        {
            "plain": Engine,
            "NGRAM, 15 nodes": lambda: Engine("NGRAM"),
            "specds, 15 nodes": lambda: Engine("NGRAM", options={}),
            "specds with recycled predictions, normal effort, 15 nodes": lambda: Engine(
                "NGRAM", options={"effort": "normal", "recycle_predictions": True}
            ),
        }
    )
