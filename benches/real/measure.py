"""One process: a model in one dtype on some threads writes the requests of some kinds each way.

Ways take turns at each request, with the same seed. Times are of whole calls, the prompt included.
"""

import json
import sys
import time

from real.tables import WAYS

NEW_TOKENS = 64
MODES = {
    "greedy": {"do_sample": False},
    "T 0.7": {"do_sample": True, "temperature": 0.7, "top_k": 0},
}


def measure(plan, write):
    """Calls `write` with a row for each call; a plan is what `real` passes as JSON."""
    if plan["clock"] == "cpu":
        # Other programs then mislead neither the figures nor the budget.
        time.perf_counter = time.process_time
    import torch
    import transformers

    import specds
    from real.kinds import encode, log, messages

    torch.set_num_threads(plan["threads"])
    transformers.logging.set_verbosity_error()
    tokenizer = transformers.AutoTokenizer.from_pretrained(plan["folder"])
    model = transformers.AutoModelForCausalLM.from_pretrained(
        plan["folder"], dtype=getattr(torch, plan["dtype"])
    ).eval()
    specds.warm_up(model)
    for kind in plan["kinds"]:
        asked = [encode(tokenizer, one) for one in messages(kind)[: plan["limit"]]]
        logged = [encode(tokenizer, one) for one in log(kind)]
        answers = [answer(model, ids, plan["new_tokens"]) for ids in logged]
        for mode in plan["modes"]:
            ways = ways_of(model, answers)
            for number, ids in enumerate(asked):
                names = [*ways]
                for name in names[number % len(names) :] + names[: number % len(names)]:
                    torch.manual_seed(number)
                    settings = {"max_new_tokens": plan["new_tokens"], **MODES[mode]}
                    row = timed(ways[name], ids, settings)
                    write({"kind": kind, "mode": mode, "way": name, "number": number, **row})


def timed(way, ids, settings):
    wall, cpu = time.monotonic(), time.process_time()
    sequence, passes, shares = way(ids, settings)
    cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    text = sequence[0, ids.shape[1] :].tolist()
    return {"wall_s": wall, "cpu_s": cpu, "passes": passes, "shares": shares, "text": text}


def answer(model, ids, new_tokens):
    """A request with the model's own greedy answer, as a server would remember it."""
    return model.generate(ids, max_new_tokens=new_tokens, do_sample=False)[0].tolist()


def ways_of(model, log):
    """Functions of ids and settings that return `(sequences, passes, shares of phases)`."""
    import torch

    import specds

    def plain(ids, settings):
        passes = []
        # Removed after the call: specds leaves a model with hooks to its own forward.
        hook = model.register_forward_pre_hook(lambda *_: passes.append(1))
        try:
            text = model.generate(ids, attention_mask=torch.ones_like(ids), **settings)
        finally:
            hook.remove()
        return text, len(passes), {}

    def lookup(ids, settings):
        return plain(ids, {**settings, "prompt_lookup_num_tokens": 10})

    def drafted(max_nodes):
        memory = specds.Memory(model.config.vocab_size)  # of the log and the requests of a kind
        for text in log:
            memory.insert("", text)
        drafter = specds.FusedDrafter(memory=memory)

        def write(ids, settings):
            output = specds.generate(model, ids, drafter, max_nodes=max_nodes, **settings)
            return output.sequences, 1 + output.stats.num_drafts, output.stats.shares

        return write

    return dict(zip(WAYS, (plain, lookup, drafted(0), drafted("auto")), strict=True))


if __name__ == "__main__":
    measure(json.loads(sys.argv[1]), lambda row: print(json.dumps(row), flush=True))
