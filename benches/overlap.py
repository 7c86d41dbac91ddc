"""How long does a device wait for the host in a step? Recorded answers on a stand-in for a device.

    make bench-overlap ARGS="--datastore chat.specds --transcripts answers.jsonl"

Loop, drafter, packing and unpacking are real. The device is a thread that sleeps for a step and
then gives the tokens that were recorded; by default the demo's model gives them first. A wait is
from the moment at which a pass is done and the host knows it to the beginning of the next one.
`overlap` off: what is learned for the budget is learned before the next draft.
"""

import argparse
from itertools import product
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, LogitsProcessorList, StoppingCriteriaList
from transformers.generation.stopping_criteria import MaxLengthCriteria

from demo_setup import demo, show, table_of
from specds import Datastore, FusedDrafter
from specds.accept.on_device import follow, report
from specds.accept.on_host import Emitter, Sampler
from specds.bench.transcripts import Transcript, read_files
from specds.budget.experience import Experience
from specds.budget.policy import AutoBudget, Budget
from specds.budget.step_cost import MOST_NODES, CostModel
from specds.decoding import Decoding, Row
from specds.loading import load_tokenizer
from specds.verify import StaticRunner
from stand_in_device import StandInDevice

GREEDY = LogitsProcessorList()


class Replaying(StaticRunner):
    """Gives the tokens that were recorded, which takes it no time.

    What is recorded outlives a runner, so these belong to all of them.
    """

    answer = torch.zeros(1, dtype=torch.int64)
    start = 0

    def prefill_rows(self, prompts, chunk_size=None):
        Replaying.start = prompts[0].shape[1] - 1
        logits = torch.zeros_like(super().prefill_rows(prompts, chunk_size))
        logits[0, self.answer[0]] = 1
        return logits

    def _pass(self, inputs, end):
        return torch.zeros((*inputs.token_ids.shape, 1))

    def _accept(self, inputs, logits, request):
        places = inputs.lengths[:, None] - self.start + inputs.depths
        choices = self.answer[places.clamp(max=len(self.answer) - 1)]
        visible = inputs.visible()
        counts, path = follow(inputs.token_ids, inputs.depths, inputs.parents, visible, choices)
        self._move(inputs, path)
        # What else a model would foretell is not recorded: any tokens take as long.
        ranks = torch.arange(request.num_predictions)
        predictions = (inputs.token_ids[..., None] * 7919 + ranks) % request.known_tokens
        return report(counts, path, choices, predictions)


class InTurn(Decoding):
    """Learns before it drafts."""

    def _draft(self, rows):
        self.budget.learn()
        return super()._draft(rows)


def as_tensor(token_ids):
    return torch.from_numpy(token_ids.astype(np.int64))


def replay(drafter, model, request, budget, device, loop=Decoding):
    """Replays a recorded answer; returns the statistics."""
    prompt, answer = map(as_tensor, (request.prompt_ids, request.completion_ids))
    Replaying.answer = answer
    max_length, vocab_size = len(prompt) + len(answer), model.config.vocab_size
    emitter = Emitter(prompt[None], StoppingCriteriaList([MaxLengthCriteria(max_length)]))
    row = Row(prompt[None], Sampler(GREEDY, do_sample=False), emitter, drafter.session, vocab_size)
    row.session.set_step_time(device.step_s)
    sizes = {"prompt_length": len(prompt), "max_length": max_length, "max_nodes": MOST_NODES}
    runner = Replaying(model, **sizes)
    decoding = loop(runner, budget, max_length, vocab_size)
    device.rest()
    with torch.no_grad():
        decoding.run([row], None)
    assert row.emitter.emitted == answer.tolist()
    row.session.finish()
    runner.close()
    return decoding.stats


def recorded(given):
    """A datastore, and answers."""
    if given.datastore is not None:
        datastore = Datastore.open(given.datastore)
        tokenizer = load_tokenizer(datastore.tokenizer_name)
        return datastore, read_files(given.transcripts, tokenizer)
    with demo(given.answers) as made:
        answers = []
        for ids in made.ids():
            output = made.model.generate(ids, max_new_tokens=200, do_sample=False)[0]
            answers.append(Transcript("demo", *np.split(output.numpy(), [ids.shape[1]])))
        return made.datastore, answers


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datastore", type=Path)
    parser.add_argument("--transcripts", type=Path, nargs="+", default=[])
    parser.add_argument("--answers", type=int, default=6)
    parser.add_argument("--nodes", nargs="+", default=["16", "63", "auto"])
    parser.add_argument("--steps", type=float, nargs="+", default=[2, 5, 10], help="milliseconds")
    given = parser.parse_args()
    datastore, requests = recorded(given)
    small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "max_position_embeddings": 1 << 16}
    config = LlamaConfig(vocab_size=datastore.vocab_size, **small, **heads)
    model = LlamaForCausalLM(config).eval()
    names = ("step, ms", "nodes", "overlap")
    table = table_of(names, ("tokens a pass", "wait, µs", "of it processor", "p90", "% of step"))
    # The first one brings the pages of the datastore into memory.
    cases = [(0.0, str(MOST_NODES), Decoding)]
    cases += product((ms / 1e3 for ms in given.steps), given.nodes, (InTurn, Decoding))
    for step_s, nodes, loop in cases:
        if loop is InTurn and nodes != "auto":
            continue
        drafter, device, stats = FusedDrafter(datastore), StandInDevice(step_s), []
        costs = CostModel({0: step_s, MOST_NODES: 1.1 * step_s}) if step_s else None
        with device.in_use():
            experience = Experience()
            for request in requests[: given.answers]:
                budget = Budget(int(nodes)) if nodes != "auto" else None
                budget = budget or AutoBudget(lambda: costs, experience)  # noqa: B023
                stats.append(replay(drafter, model, request, budget, device, loop))
        if step_s:
            accepted = sum(stats[1:], stats[0]).mean_acceptance_length
            waits = np.array(device.waits_s)
            wait, processor = np.median(waits, axis=0)
            late = np.quantile(waits[:, 0], 0.9)
            figures = f"{accepted:.2f}", *(f"{1e6 * s:.0f}" for s in (wait, processor, late))
            share = f"{100 * wait / step_s:.1f}"
            overlap = "off" if loop is InTurn else "on"
            table.add_row(f"{1e3 * step_s:g}", nodes, overlap, *figures, share)
    show(table)


if __name__ == "__main__":
    main()
