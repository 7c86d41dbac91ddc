"""Benchmark of an assembled bundle on a GPU: speed of vLLM in four ways, texts and CUDA graphs.

    PYTHONPATH=FOLDER/site python3 -m engines.device_checks FOLDER/model

Plain vLLM, its n-grams (`ngram_gpu`) and specds write edits, agents' calls and chats, 1, 8 and 32
at a time, each way in a process of its own: speed over plain, greedy texts that are equal to
plain's, and the graphs of its steps by vLLM's own counter. At last the prompt is read, by the
model and by our runner. `--rehearse` does all of it on a CPU with few tokens, where Triton's
interpreter computes attention.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from importlib import import_module
from itertools import chain
from time import perf_counter
from typing import Any

WayResult = dict[str, Any]
KINDS, ROWS, K = ("edit", "agent", "chat"), (1, 8, 32), 8
NGRAM_GPU = {"method": "ngram_gpu", "num_speculative_tokens": K}
SPECDS = {"speculative_config": NGRAM_GPU, "additional_config": {"specds": {}}}
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ngram_gpu": {"speculative_config": NGRAM_GPU},
    "specds": {**SPECDS, "speculative_config": {**NGRAM_GPU, "enable_adaptive_verification": True}},
    "specds, one size": {**SPECDS, "async_scheduling": False},
}
REHEARSED = {key: way for key, way in WAYS.items() if key != "specds"}
"""Adaptive verification needs CUDA graphs."""
MOST_S = 240


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--way", help="only this one, in this process")
    asked = parser.parse_args()
    if asked.way:
        return read_prompts(asked) if asked.way == "prompts" else measure(asked)
    found: dict[tuple[str, str, int], WayResult] = {}
    for way in [*(REHEARSED if asked.rehearse else WAYS), "prompts"]:
        command = [sys.executable, "-W", "ignore", "-m", "engines.device_checks", *sys.argv[1:]]
        try:
            done = subprocess.run(
                [*command, "--way", way],
                stdout=subprocess.PIPE,
                timeout=None if asked.rehearse else MOST_S,
            )
        except subprocess.TimeoutExpired:
            print(f"{way}: no result in {MOST_S} s", flush=True)
            continue
        lines = [line for line in done.stdout.decode().splitlines() if line.startswith("{")]
        for row in map(json.loads, lines):
            found[way, row["kind"], row["rows"]] = row
            print(shown(way, row, found.get(("plain", row["kind"], row["rows"]))), flush=True)
        if done.returncode:
            print(f"{way}: ended with status {done.returncode}", flush=True)


def shown(way: str, row: WayResult, plain: WayResult | None) -> str:
    cell = f"{way} | {row['kind']} | {row['rows']}"
    if "texts" not in row:
        return f"{cell} | {row['seconds'] * 1000:.1f} ms"
    speed = tokens_a_second(row)
    line = f"{cell} | {speed:.0f} tokens/s"
    if plain:
        equal = sum(map(list.__eq__, row["texts"], plain["texts"]))
        line += f" | {speed / tokens_a_second(plain):.2f} | {equal} of {len(row['texts'])} equal"
    return f"{line} | accepted {row['accepted']} of {row['drafted']} | graphs {row['graphs']}"


def tokens_a_second(row: WayResult) -> float:
    return len([*chain(*row["texts"])]) / row["seconds"]


def measure(asked: argparse.Namespace) -> None:
    """Print a line of JSON for each kind and number of rows."""
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "1",
    }
    if asked.rehearse:
        rehearse()
    from transformers import AutoTokenizer
    from vllm import LLM, SamplingParams
    from vllm.compilation.cuda_graph import CUDAGraphLogging

    from real.kinds import encode, messages

    graphs = Counter[str]()
    observe = CUDAGraphLogging.observe
    CUDAGraphLogging.observe = lambda self, stat: (
        graphs.update([stat.runtime_mode]),
        observe(self, stat),
    )[1]
    about = {"max_num_seqs": 32, "compilation_config": compilation(), "cudagraph_metrics": True}
    if asked.rehearse:
        about = {"max_num_seqs": 2, "enforce_eager": True, "dtype": "float32"}
        about["compilation_config"] = {"custom_ops": ["none"]}
    llm = LLM(
        model=asked.model,
        max_model_len=2048,
        enable_prefix_caching=False,
        attention_config={"backend": "TRITON_ATTN"},
        ir_op_priority={"rms_norm": ["native"], "fused_add_rms_norm": ["native"]},
        disable_log_stats=False,
        seed=0,
        **{**about, **WAYS[asked.way]},
    )
    tokenizer = AutoTokenizer.from_pretrained(asked.model)
    greedy = {"temperature": 0, "ignore_eos": True}

    def write(prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        params = SamplingParams(max_tokens=new_tokens, **greedy)
        given = [{"prompt_token_ids": ids} for ids in prompts]
        outputs = llm.generate(given, params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    for kind, rows in itertools.product(KINDS, ROWS):
        if asked.rehearse and (rows == ROWS[-1] or kind == KINDS[-1]):
            continue
        asks = itertools.islice(itertools.cycle(messages(kind)), rows)
        prompts = [list(encode(tokenizer, one)) for one in asks]
        if asked.rehearse:
            prompts = [ids[-12:] for ids in prompts[:2]]
        write(prompts, 2 if asked.rehearse else 16)
        graphs.clear()
        before, start = counts(llm), perf_counter()
        texts = write(prompts, 6 if asked.rehearse else asked.new_tokens)
        row = {"seconds": perf_counter() - start, "texts": texts, "graphs": graphs}
        row |= {name: number - before[name] for name, number in counts(llm).items()}
        print(json.dumps({"kind": kind, "rows": rows, **row}), flush=True)


def counts(llm: Any) -> dict[str, int]:
    """Return vLLM's own numbers of drafted and accepted tokens."""
    values = {metric.name: getattr(metric, "value", 0) for metric in llm.get_metrics()}
    names = {"drafted": "num_draft_tokens", "accepted": "num_accepted_tokens"}
    return {key: values.get(f"vllm:spec_decode_{name}", 0) for key, name in names.items()}


def compilation() -> dict[str, Any]:
    """Return graphs of whole steps without torch's compiler, which a bundle does not rely on."""
    sizes = [1, 2, 4, *range(8, 32 * (K + 1) + 1, 8)]
    about = {"mode": 0, "cudagraph_mode": "FULL", "cudagraph_capture_sizes": sizes}
    return {**about, "custom_ops": ["none"]}


def rehearse() -> None:
    """Let vLLM run without a GPU and its compiled extension: Triton interprets all kernels."""
    os.environ |= {
        "OMP_NUM_THREADS": "1",
        "TRITON_INTERPRET": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_TARGET_DEVICE": "cpu",
    }
    from types import SimpleNamespace

    from triton.backends import backends

    backends["interpreter"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True))
    import torch
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    torch.ops._C.init_cpu_memory_env = lambda _: None
    torch.cuda.get_device_capability = lambda _=None: (9, 0)
    for name in ("platforms.cuda", "v1.worker.gpu_worker"):
        import_module(f"vllm.{name}")  # what only a GPU runs is imported at least
    backend = AttentionBackendEnum.TRITON_ATTN.get_path()
    CpuPlatform.get_attn_backend_cls = classmethod(lambda *_, **__: backend)


def read_prompts(asked: argparse.Namespace) -> None:
    """Print the time of prompts, by the model and by the runner of `specds.generate`."""
    import torch
    from transformers import AutoModelForCausalLM

    from specds.transformers.verify.packed import PackedRunner

    device = "cpu" if asked.rehearse else "cuda"
    dtype = torch.float32 if asked.rehearse else torch.bfloat16
    model = AutoModelForCausalLM.from_pretrained(asked.model, dtype=dtype).to(device)
    for length in (16, 32) if asked.rehearse else (512, 2000):
        prompt = torch.arange(1, length + 1)[None]

        def by_model(prompt: Any = prompt) -> Any:
            return model(prompt.to(device), logits_to_keep=1).logits

        def by_runner(prompt: Any = prompt, length: int = length) -> Any:
            runner = PackedRunner(
                model, prompt_length=length, max_length=length + 9, max_nodes=8, num_rows=1
            )
            try:
                return runner.prefill_rows([prompt])
            finally:
                runner.close()

        for name, read in (("model", by_model), ("runner", by_runner)):
            times = []
            for _ in range(5):
                start = perf_counter()
                with torch.no_grad():
                    float(read().float().sum())  # waits for the device
                times.append(perf_counter() - start)
            print(json.dumps({"kind": name, "rows": length, "seconds": min(times)}), flush=True)


if __name__ == "__main__":
    main()
