"""The steps of vLLM with eight requests, and with a ninth that is hostile all the time.

    make bench-hostile

Each hostile request ends and is followed by the next: grammars that force a text without an end or
of 100 kB, a grammar of many texts, a predicted output of 262,144 tokens, tools of a long prompt.
Times are CPU times of the thread of the steps. Those of whole steps are without steps that read a
prompt, those of specds are with them.
"""

import argparse
from itertools import cycle
from time import thread_time

import numpy as np

from engines import workload
from engines.vllm import Engine, chains
from specds.models.tool_calls import MAX_IDS

NUM_GOOD = 8
LINKED = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
LONG = "x" * 100_000
HOSTILE = {
    "endless text": {"grammar": 'root ::= "ab" root'},
    "endless list": {"json": {**LINKED, "additionalProperties": False}},
    "forced text of 100 kB": {"json": {"const": LONG}},
    "many texts": {"json": {"type": "array", "items": {"enum": [f"{n * n}v" for n in range(800)]}}},
    "long repetitions": {"regex": "(a?[b-f]{1,9}(gh|[i-k]{2,7})?){60}"},
}
PLAIN_GRAMMAR = "good, with a grammar"
KINDS = {"enum": ["function", "class", "module"]}
OTHERS = {PLAIN_GRAMMAR: {"json": {"type": "array", "items": KINDS, "minItems": 40}}}
PREDICTED = "predicted output of 262,144 tokens"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=None, help="the demo's model by default")
    parser.add_argument("--tokens", type=int, default=600, help="new tokens of each good request")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--each", action="store_true", help="each kind of hostile request alone")
    asked = parser.parse_args()
    usual = {"max_num_seqs": NUM_GOOD + 1, **({"model": asked.model} if asked.model else {})}
    print("| engine | ninth request | steps | mean | p50 | p99 | p99 over that of eight |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    drafting = chains(8, step_cost="measured", min_prob=None)
    if asked.model:  # of another tokenizer than the datastore
        drafting["additional_config"]["specds"]["datastore"] = None
    for way, about in {"vLLM": {}, "specds": drafting}.items():
        with Engine(**usual, **about) as engine:
            bench = Bench(engine, asked.tokens, asked.rounds)
            bench.run(["good"])
            baseline = bench.run([])
            hostile = [*HOSTILE, *([PREDICTED] if about else ())]
            ninths = {"none": [], "good": ["good"], PLAIN_GRAMMAR: [PLAIN_GRAMMAR]}
            ninths["hostile"] = hostile
            if asked.each:
                ninths |= {kind: [kind] for kind in hostile}
            for ninth, kinds in ninths.items():
                found = baseline if ninth == "none" else bench.run(kinds)
                for part, times in found.items():
                    if part == "draft" and not about:
                        continue
                    name = way if part == "step" else "drafts of specds"
                    over = p99(times) / p99(baseline[part])
                    numbers = 1e3 * times.mean(), 1e3 * np.median(times), 1e3 * p99(times)
                    shown = " | ".join(f"{number:.2f} ms" for number in numbers)
                    print(f"| {name} | {ninth} | {len(times)} | {shown} | {over:.2f} |", flush=True)
            if about:
                stats = engine.proposer.drafter.stats()
                print(f"\n{engine.proposer.num_limited} limited, {engine.proposer.num_failures} "
                      f"failures, {stats['num_row_steps']} row steps")  # fmt: skip


def p99(times):
    return float(np.quantile(times, 0.99))


class Bench:
    def __init__(self, engine, num_tokens, num_rounds):
        self.engine, self.num_tokens, self.num_rounds = engine, num_tokens, num_rounds
        self.prompts = workload.prompts()
        self.draft_s = 0.0
        if engine.proposer is not None:
            self._time_drafts(engine.proposer)
        self.numbers = iter(range(1 << 30))

    def _time_drafts(self, proposer):
        propose = proposer.propose

        def timed(*arguments, **more):
            before = thread_time()
            try:
                return propose(*arguments, **more)
            finally:
                self.draft_s += thread_time() - before

        proposer.propose = timed

    def run(self, kinds):
        """Return the times of the steps, and of the drafts in them."""
        core = self.engine.llm.llm_engine
        found = {"step": [], "draft": []}
        for _ in range(self.num_rounds):
            for part, times in self._round(core, kinds).items():
                found[part] += times
        return {part: np.array(times) for part, times in found.items()}

    def _round(self, core, kinds):
        good = {self._begin(core, prompt, self.num_tokens) for prompt in self.prompts[:NUM_GOOD]}
        others = cycle(kinds)
        ninth, is_read, steps, drafts, seen = None, False, [], [], set()
        while good:
            if kinds and ninth is None and is_read:
                ninth = self._begin_ninth(core, next(others))
            self.draft_s, before = 0.0, thread_time()
            outputs = core.step()
            spent = thread_time() - before
            new = {output.request_id for output in outputs} - seen
            seen |= new
            if is_read:
                drafts.append(self.draft_s)
            if is_read and not new:
                steps.append(spent)
            for output in outputs:
                if output.finished:
                    good.discard(output.request_id)
                    ninth = None if output.request_id == ninth else ninth
            is_read = good <= seen
        if ninth is not None:
            core.abort_request([ninth])
            core.step()
        return {"step": steps, "draft": drafts}

    def _begin_ninth(self, core, kind):
        prompt = self.prompts[NUM_GOOD]
        extra = None
        if kind == PREDICTED:
            extra = {"specds_predicted_output": (prompt * (MAX_IDS // len(prompt) + 1))[:MAX_IDS]}
        return self._begin(core, prompt, 120, (HOSTILE | OTHERS).get(kind), extra)

    def _begin(self, core, prompt, num_tokens, structured=None, extra=None):
        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams

        params = SamplingParams(
            temperature=0,
            max_tokens=num_tokens,
            ignore_eos=structured is None,
            extra_args=extra,
            structured_outputs=structured and StructuredOutputsParams(**structured),
        )
        name = f"request {next(self.numbers)}"
        core.add_request(name, {"prompt_token_ids": prompt}, params)
        return name


if __name__ == "__main__":
    main()
