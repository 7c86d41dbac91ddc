"""One process of `make bench-real`: a model in one dtype answers requests of some kinds."""

import json
import sys
import time

NEW_TOKENS = 64
WAYS = ("generate", "transformers-prompt-lookup", "plain", "specds")
MODES = {
    "greedy": {"do_sample": False},
    "T 0.7": {"do_sample": True, "temperature": 0.7, "top_k": 0},
}


def measure(settings, write):
    """Call `write` with a row for each call; `settings` are those that `real` passes as JSON."""
    if settings["clock"] == "cpu":
        # Neither figures nor the estimated cost of steps then depend on other programs.
        time.perf_counter = time.process_time
    import torch
    import transformers

    import specds
    from real.kinds import encode, log, messages
    from specds.bench.generation import measure as harness

    torch.set_num_threads(settings["threads"])
    transformers.logging.set_verbosity_error()
    tokenizer = transformers.AutoTokenizer.from_pretrained(settings["folder"])
    model = transformers.AutoModelForCausalLM.from_pretrained(
        settings["folder"], dtype=getattr(torch, settings["dtype"])
    ).eval()
    specds.warm_up(model)
    target, length = harness.BenchTarget(model), {"max_new_tokens": settings["new_tokens"]}
    modes = {name: MODES[name] | length for name in settings["modes"]}
    for kind in settings["kinds"]:
        asked = [encode(tokenizer, one) for one in messages(kind)[: settings["limit"]]]
        logged = [encode(tokenizer, one) for one in log(kind)]
        answers = [ids + answer for ids in logged for answer in greedy_answer(target, ids, length)]

        def make(answers=answers):
            memory = specds.Memory(model.config.vocab_size)
            for tokens in answers:
                memory.insert("", tokens)
            return specds.FusedDrafter(memory=memory)

        ways = [
            *(harness.baseline_way(name, target) for name in WAYS[:-1]),
            harness.drafter_way(WAYS[-1], target, make, "auto"),
        ]
        batches = {1: [[ids] for ids in asked]}
        plan = harness.Plan(target, ways, modes, batches, 1, 0, warm_up={"max_new_tokens": 8})
        for cell in harness.measure(plan):
            for number, row in enumerate(rows_of(cell.runs[0])):
                write(
                    {"kind": kind, "mode": cell.mode, "way": cell.way.name, "number": number} | row
                )


def greedy_answer(target, ids, length):
    """Return the model's own greedy answer, as a server would remember it."""
    inputs, mask = target.inputs([ids])
    sequences = target.model.generate(inputs, attention_mask=mask, do_sample=False, **length)
    return target.emitted(sequences, len(ids))


def rows_of(run):
    for seconds, result in zip(run.seconds, run.results, strict=True):
        [text], stats = result.token_ids, result.stats
        row = {"seconds": seconds, "texts": [text], "tokens": len(text)}
        if stats:
            row |= {"passes": 1 + stats.num_drafts, "shares": stats.shares}
            row |= {"drafted": stats.num_draft_tokens, "accepted": stats.num_accepted_tokens}
        yield row


if __name__ == "__main__":
    measure(json.loads(sys.argv[1]), lambda row: print(json.dumps(row), flush=True))
