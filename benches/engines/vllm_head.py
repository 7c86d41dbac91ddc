"""A trained head for the demo's model in vLLM: alone, always with specds, never, and by choice.

    make bench-vllm-head

Requests are new, and are then sent again, so that the memory has their answers. Where the head is
skipped, its first pass still runs.
"""

from contextlib import ExitStack
from time import process_time

from engines.vllm import Engine, chains, eagle
from engines.workload import WORK, eagle_head, model_path, prompts, tokens_a_step

K, NUM_STEPS, ROWS, LENGTH = 5, 300, 8, 160
WAYS = {"head alone": None, "never": True, "always": False, "by choice": None}


def train(folder):
    """Train a head on text of the standard library, to its target's outputs, in three minutes."""
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaModel

    from specds.bench.demo import HELD_OUT
    from specds.corpora import belongs_to, stdlib_documents

    file = folder / "model.safetensors"
    if file.exists():
        return str(folder)
    target = AutoModelForCausalLM.from_pretrained(model_path(), dtype=torch.float32)
    layer = LlamaModel(AutoConfig.from_pretrained(model_path(), num_hidden_layers=1))
    layer.layers[0].input_layernorm = layer.norm = torch.nn.Identity()
    width = target.config.hidden_size
    fc = torch.nn.Linear(2 * width, width, bias=False)
    tokenizer, ids = AutoTokenizer.from_pretrained(model_path()), []
    for document in stdlib_documents():
        if not belongs_to(document.name, HELD_OUT) and len(ids) < NUM_STEPS * ROWS * LENGTH:
            ids += tokenizer.encode(document.text)
    rows = torch.tensor(ids[: len(ids) // LENGTH * LENGTH]).view(-1, LENGTH)
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    weights = [*layer.layers.parameters(), *fc.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, NUM_STEPS)
    for batch in rows.split(ROWS)[:NUM_STEPS]:
        with torch.no_grad():
            hidden = target.model(batch).last_hidden_state
            wanted = target.lm_head(hidden[:, 1:]).softmax(-1)
            embedded = target.model.embed_tokens(batch[:, 1:])
        given, loss = hidden[:, :-1], 0.0
        for _ in range(2):  # its own states follow the target's
            given = layer(inputs_embeds=fc(torch.cat((embedded, given), -1))).last_hidden_state
            logits = target.lm_head(given)
            loss += torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(0, 1))
            given = torch.cat((hidden[:, :1], given[:, :-1]), 1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    eagle_head(folder)
    saved = layer.layers.state_dict(prefix="layers.") | {"fc.weight": fc.weight}
    save_file({name: saved[name].detach().contiguous() for name in load_file(file)}, file)
    return str(folder)


def main():
    from specds.integrations import vllm_combined

    vllm_combined.perf_counter = process_time  # other programs then mislead no choice
    vllm_combined.wrap_proposers()
    head, given, rows, engines = eagle(train(WORK / "head"), K), prompts(), {}, {}
    with ExitStack() as stack:
        for way, skips in WAYS.items():
            about = {**chains(K, datastore=None, memory_scope="shared"), **head}
            about |= {"additional_config": {}} if way == "head alone" else {}
            engine = engines[way] = stack.enter_context(Engine(**about))
            if skips is not None:
                engine.proposer.specds.choice.skips = lambda _, skips=skips: skips
            engine.generate([[7, 8, 9]], 4)
        for turn in range(4):
            for way, engine in engines.items():
                texts = engine.generate(given[turn // 2 :: 2])
                steps = tokens_a_step(texts, engine.num_row_steps)
                rows.setdefault(way, []).append((texts, steps, engine.cpu_seconds))
    print("| head | tokens per decode step: new | again | tokens per CPU second: new | again |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for way, turns in rows.items():
        assert [texts for texts, *_ in turns] == [texts for texts, *_ in rows["head alone"]]
        steps = (sum(s for _, s, _ in turns[n::2]) / 2 for n in range(2))
        speeds = (sum(len(t) for texts, *_ in turns[n::2] for t in texts) for n in range(2))
        seconds = (sum(s for *_, s in turns[n::2]) for n in range(2))
        cells = [f"{s:.2f}" for s in steps] + [
            f"{tokens / s:.0f}" for tokens, s in zip(speeds, seconds, strict=True)
        ]
        print(f"| {way} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
