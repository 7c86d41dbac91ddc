"""Requests for all engines, which `python -m engines.workload` writes, and their measurement."""

import json
import os
import shutil
import sys
from pathlib import Path

NUM_PROMPTS = 12
NUM_TOKENS = 128
WORK = Path(os.environ.get("SPECDS_ENGINE_WORK", "target/engines"))
DATASTORE = str(WORK / "stdlib.specds")
WHOLE = {"step_cost": "ignored", "min_prob": 0.0}  # drafts, whatever a step costs


def write():
    """Write prompts and a datastore; only `tokenizers` must be installed."""
    from specds.bench.demo import build_stdlib
    from specds.bench.demo import prompts as held_out_prompts
    from specds.models.load import load_encoder

    tokenizer = load_encoder("demo")
    WORK.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(DATASTORE, ignore_errors=True)
    build_stdlib(tokenizer, Path(DATASTORE))
    texts = [prompt.text for prompt in held_out_prompts(NUM_PROMPTS)]
    token_ids = [tokenizer.encode(text, add_special_tokens=True) for text in texts]
    (WORK / "prompts.json").write_text(json.dumps(token_ids))


def prompts():
    return json.loads((WORK / "prompts.json").read_text())


def model_path():
    from specds.models.resolve import demo_models

    return str(demo_models() / "main")


def other_datastore(folder):
    """Build a datastore of another tokenizer than the engine's."""
    from specds.indexing import DatastoreBuilder

    about = {"vocab_size": 9, "separator": 9, "tokenizer_fingerprint": "xxh3:other"}
    with DatastoreBuilder(folder / "other", **about) as builder:
        builder.add_documents([1, 2], [2])
        builder.finish()
    return str(folder / "other")


def lora_adapter(folder, seed):
    """Save a random adapter of the model, large enough to change its texts."""
    import torch
    from safetensors.torch import save_file

    random = torch.Generator().manual_seed(seed)
    rank, weights, config = 8, {}, json.loads(Path(model_path(), "config.json").read_text())
    size, heads = config["hidden_size"], ("num_attention_heads", "num_key_value_heads")
    sizes = [config["head_dim"] * config[name] for name in heads]
    modules = dict(zip(("q_proj", "v_proj"), sizes, strict=True))
    for layer in range(config["num_hidden_layers"]):
        for module, out in modules.items():
            at = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            for matrix, shape in (("A", (rank, size)), ("B", (out, rank))):
                weight = 0.15 * torch.randn(shape, generator=random)
                weights[f"{at}.lora_{matrix}.weight"] = weight
    about = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": [*modules]}
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(about))
    return str(folder)


def eagle_head(folder):
    """Save a random EAGLE-1 head for the model."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, LlamaModel

    config = AutoConfig.from_pretrained(model_path(), num_hidden_layers=1)
    torch.manual_seed(0)
    weights = LlamaModel(config).layers.state_dict(prefix="layers.")
    del weights["layers.0.input_layernorm.weight"]
    weights["fc.weight"] = torch.randn(config.hidden_size, 2 * config.hidden_size) / 16
    config.save_pretrained(folder)
    save_file(weights, folder / "model.safetensors")
    return str(folder)


def tokens_a_step(texts, num_row_steps):
    """Return tokens per decode step; the first token of each text is the prefill's."""
    return (sum(map(len, texts)) - len(texts)) / (num_row_steps - len(texts))


def measure(ways):
    """Print the figures of the way that the command line names, or without a name all ways.

    A way is a name and a function that opens an engine that drafts in this way.
    """
    if len(sys.argv) == 1:
        print(json.dumps(list(ways)))
        return
    given = prompts()
    with ways[sys.argv[1]]() as engine:
        engine.generate(given[:1], max_tokens=4)
        texts = engine.generate(given)
        steps = tokens_a_step(texts, engine.num_row_steps)
        print(
            json.dumps(
                {
                    "tokens_a_step": steps,
                    "tokens_a_cpu_s": sum(map(len, texts)) / engine.cpu_seconds,
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    write()
