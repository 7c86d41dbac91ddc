"""Training of the demo's tokenizer and models on the interpreter's standard library.

    python scripts/train_demo_models.py --out packages/demo/specds_demo

The seed, the interpreter's library and the step counts in ``SIZES`` determine the result; see
``scripts/README.md``.
"""

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from specds.bench.demo import HELD_OUT, held_out_documents
from specds.corpora import stdlib_documents

END_OF_TEXT = "<|endoftext|>"
VOCAB_SIZE = 4096
CONTEXT = 512
BATCH_TOKENS = 8192


@dataclass(frozen=True)
class Size:
    """Shape of one model, and its number of training steps."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    steps: int


SIZES = {
    "tiny": Size(hidden=56, layers=2, heads=2, kv_heads=1, intermediate=144, steps=1000),
    "small": Size(hidden=128, layers=4, heads=2, kv_heads=1, intermediate=384, steps=1200),
    "main": Size(hidden=256, layers=6, heads=4, kv_heads=2, intermediate=672, steps=1400),
}


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE whose words keep a line break and its indentation together."""
    tokenizer = Tokenizer(models.BPE())
    words = Regex(r"\n+[ \t]*| ?[A-Za-z_]+| ?\d{1,3}| ?[^\sA-Za-z_\d]+|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(words, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCAB_SIZE,
            special_tokens=[END_OF_TEXT],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )


def encode(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> np.ndarray:
    """Encode all texts into one array of token ids, each with an end-of-text token."""
    end = tokenizer.eos_token_id
    rows = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return np.concatenate([np.asarray([*row, end], dtype=np.int64) for row in rows])


def new_model(size: Size, end_of_text: int) -> LlamaForCausalLM:
    """Make a Llama with tied embeddings and random weights."""
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        intermediate_size=size.intermediate,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end_of_text,
        pad_token_id=None,
    )
    return LlamaForCausalLM(config)


def loss_of(model: LlamaForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
    """Return the mean next-token loss in nats over a batch ``(rows, CONTEXT + 1)``."""
    with torch.autocast(tokens.device.type, dtype=torch.bfloat16):
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    targets = tokens[:, 1:].reshape(-1)
    return torch.nn.functional.cross_entropy(logits.float().reshape(-1, VOCAB_SIZE), targets)


@torch.no_grad()
def bits_per_byte(model: LlamaForCausalLM, tokens: np.ndarray, num_bytes: int) -> float:
    """Return bits per byte; each token is scored once, after at least half a context."""
    device = next(model.parameters()).device
    half, nats, scored = CONTEXT // 2, 0.0, 1
    while scored < len(tokens):
        begin = max(0, scored - half)
        window = torch.from_numpy(tokens[begin : begin + CONTEXT]).to(device)
        logits = model(input_ids=window[None], use_cache=False).logits[0].float()
        fresh = slice(scored - begin - 1, len(window) - 1)
        nats += torch.nn.functional.cross_entropy(
            logits[fresh], window[1:][fresh], reduction="sum"
        ).item()
        scored = begin + len(window)
    return nats / math.log(2) / num_bytes


def train(size: Size, data: np.ndarray, seed: int) -> LlamaForCausalLM:
    """Train one model, with Muon for matrices and AdamW for the rest."""
    torch.manual_seed(seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = new_model(size, 0).to(device)
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    optimizers = [
        torch.optim.Muon(matrices, lr=0.02, weight_decay=0.05, momentum=0.95),
        torch.optim.AdamW(others, lr=4e-3, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    base_rates = [group["lr"] for group in groups]
    batches = batch_starts(len(data), BATCH_TOKENS // CONTEXT, size.steps, seed)
    for step in range(size.steps):
        scale = min(1.0, (step + 1) / 50) * min(1.0, (size.steps - step) / (0.6 * size.steps))
        for group, rate in zip(groups, base_rates, strict=True):
            group["lr"] = rate * scale
        batch = np.stack([data[i : i + CONTEXT + 1] for i in batches[step]])
        loss = loss_of(model, torch.from_numpy(batch).to(device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}: loss {loss.item():.4f} nats", flush=True)
    return model


def batch_starts(length: int, rows: int, steps: int, seed: int) -> np.ndarray:
    """Return start positions ``(steps, rows)``: epochs of shuffled, disjoint windows."""
    generator = np.random.default_rng(seed)
    starts: list[np.ndarray] = []
    while sum(map(len, starts)) < rows * steps:
        shift = generator.integers(CONTEXT)
        epoch = np.arange(shift, length - CONTEXT - 1, CONTEXT)
        starts.append(generator.permutation(epoch))
    return np.concatenate(starts)[: rows * steps].reshape(steps, rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="one folder a model")
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    library = list(stdlib_documents(without=HELD_OUT))
    held_out_texts = [document.text for document in held_out_documents()]
    tokenizer = train_tokenizer([d.text for d in library])
    data = encode(tokenizer, [d.text for d in library])
    held_out = encode(tokenizer, held_out_texts)
    held_out_bytes = sum(len(text.encode()) for text in held_out_texts)
    print(f"{len(data)} training tokens, {len(held_out)} held-out tokens ({held_out_bytes} bytes)")

    for name in arguments.sizes:
        out = arguments.out / name
        save(train(SIZES[name], data, arguments.seed), tokenizer, out)
        model = LlamaForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
        measured = bits_per_byte(model, held_out, held_out_bytes)
        print(f"{name}: {model.num_parameters()} parameters, {measured:.4f} bits per held-out byte")


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Save the weights in half precision, and the tokenizer, for `from_pretrained`."""
    state = {name: tensor.detach().half() for name, tensor in model.state_dict().items()}
    half = LlamaForCausalLM(model.config).half()
    half.load_state_dict(state)
    half.save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    main()
