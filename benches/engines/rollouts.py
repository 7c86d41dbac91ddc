"""Rollouts of TRL's GRPO with colocated vLLM on a CPU, with drafts and without.

    make bench-rollouts ARGS="--steps 2 --temperature 1.0"

SmolLM2 learns to keep the code that it edits. In each step, two engines that have the trainer's
weights write the same prompts in turns: the trainer learns from the answers with drafts. Then both
write them greedily, where all texts must be equal. CPU seconds of vLLM, the prompts included.
"""

import argparse
import os
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from statistics import mean, stdev
from time import process_time

os.environ.update(
    HF_HUB_OFFLINE="1",
    OMP_NUM_THREADS="1",
    TOKENIZERS_PARALLELISM="false",
    VLLM_NO_USAGE_STATS="1",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_LOGGING_LEVEL="ERROR",
    VLLM_USE_V2_MODEL_RUNNER="0",
)

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from trl.generation import vllm_generation
from vllm import LLM

from real.kinds import messages
from real.models import folder_of

SPECDS = {
    "speculative_config": {
        "method": "custom_class",
        "model": "specds.integrations.vllm.Proposer",
        "num_speculative_tokens": 8,
    },
    "additional_config": {"specds": {"memory_scope": "shared"}},
}
"""What a pull request for TRL would pass to `LLM`."""
WAYS = {"plain": {}, "specds": SPECDS}


@dataclass
class Rollouts:
    """The answers of an engine."""

    seconds: float = 0.0
    num_tokens: int = 0
    num_steps: int = 0
    rewards: list[float] = field(default_factory=list)


class BothWays:
    """Two engines in place of the one of TRL."""

    def __init__(self, **about):
        made = {"enforce_eager": True, "dtype": "float32", **about}
        self.engines = {way: LLM(**made, **more) for way, more in WAYS.items()}
        self.sampled = {way: Rollouts() for way in WAYS}
        self.greedy = {way: Rollouts() for way in WAYS}
        self.order = list(WAYS)

    def reload_weights(self, named):
        weights = list(named)
        for engine in self.engines.values():
            worker = engine.llm_engine.model_executor.driver_worker
            worker.reload_weights(weights_iterator=iter(weights))

    def reset_prefix_cache(self):
        done = [engine.reset_prefix_cache() for engine in self.engines.values()]
        return all(done)

    def generate(self, prompts, sampling_params, use_tqdm):
        greedy = sampling_params.clone()
        greedy.temperature, greedy.seed = 0.0, None
        self.reset_prefix_cache()
        answers = self.written(prompts, sampling_params, self.sampled)
        self.reset_prefix_cache()
        texts = self.written(prompts, greedy, self.greedy)
        plain, ours = ([list(each.outputs[0].token_ids) for each in texts[way]] for way in WAYS)
        if plain != ours:
            raise SystemExit("a greedy text with drafts is another one")
        self.order.reverse()
        return answers["specds"]

    def written(self, prompts, sampling_params, counted):
        answers = {}
        for way in self.order:
            engine, count = self.engines[way], counted[way]
            before, start = num_row_steps(engine), process_time()
            answers[way] = engine.generate(prompts, sampling_params, use_tqdm=False)
            count.seconds += process_time() - start
            number = sum(len(each.outputs[0].token_ids) for each in answers[way])
            count.num_tokens += number
            steps = num_row_steps(engine) - before + len(prompts)
            count.num_steps += number if way == "plain" else steps
            count.rewards += map(
                reward_of, prompts_of(engine, answers[way]), texts_of(answers[way])
            )
        return answers


def num_row_steps(engine):
    runner = engine.llm_engine.model_executor.driver_worker.model_runner
    drafter = getattr(runner, "drafter", None)
    return drafter.drafter.stats()["num_row_steps"] if drafter else 0


def prompts_of(engine, answers):
    tokenizer = engine.get_tokenizer()
    return [tokenizer.decode(answer.prompt_token_ids) for answer in answers]


def texts_of(answers):
    return [answer.outputs[0].text for answer in answers]


def reward_of(prompt, text):
    """Return how much of the code at the end of the prompt the answer keeps."""
    code = prompt.rpartition("<|im_start|>user")[2].partition("\n\n")[2].partition("<|im_end|>")[0]
    return SequenceMatcher(None, code, text, autojunk=False).ratio()


def rewards(prompts, completions, **_):
    codes = (prompt[-1]["content"] for prompt in prompts)
    return [
        reward_of(f"<|im_start|>user\n{code}", completion[0]["content"])
        for code, completion in zip(codes, completions, strict=True)
    ]


def sync_weights(self):
    """Load the trainer's weights as `reload_weights` does.

    TRL calls `load_weights` of the model, which fails on a CPU, where vLLM has packed the weights.
    """
    self.llm.reload_weights(self._iter_named_params())
    self.llm.reset_prefix_cache()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=4, help="number of different prompts")
    parser.add_argument("--samples", type=int, default=8, help="answers to a prompt in a step")
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--temperature", type=float, default=1.0)
    asked = parser.parse_args()
    vllm_generation.LLM = BothWays
    vllm_generation.VLLMGeneration.sync_weights = sync_weights
    about = GRPOConfig(
        output_dir="target/rollouts",
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        learning_rate=1e-5,
        gradient_checkpointing=False,
        max_steps=asked.steps,
        per_device_train_batch_size=asked.samples,
        num_generations=asked.samples,
        max_completion_length=asked.new_tokens,
        temperature=asked.temperature,
        use_vllm=True,
        vllm_mode="colocate",
        vllm_max_model_length=1024,
    )
    data = Dataset.from_list([{"prompt": each} for each in messages("edit")[: asked.prompts]])
    model = str(folder_of("smollm2"))
    trainer = GRPOTrainer(model=model, reward_funcs=rewards, args=about, train_dataset=data)
    trainer.train()
    both = trainer.vllm_generation.llm
    print("| rollouts | way | reward | tokens a step | CPU seconds | speedup |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for name, counted in (("sampled", both.sampled), ("greedy", both.greedy)):
        for way, count in counted.items():
            error = stdev(count.rewards) / len(count.rewards) ** 0.5
            rate = count.num_tokens / count.seconds
            plain = counted["plain"].num_tokens / counted["plain"].seconds
            print(
                f"| {name} | {way} | {mean(count.rewards):.3f} ± {error:.3f}",
                f"{count.num_tokens / count.num_steps:.2f} | {count.seconds:.1f}",
                f"{rate / plain:.2f} |",
                sep=" | ",
            )
    differences = [
        log["sampling/sampling_logp_difference/mean"] for log in trainer.state.log_history[:-1]
    ]
    print(
        f"\nThe trainer's log probabilities of tokens differ from vLLM's by {max(differences):.1e}."
    )


if __name__ == "__main__":
    main()
