"""Tiny random language models of several families, and drafters whose worth is known."""

from contextlib import contextmanager
from functools import cache

import numpy as np
import torch
import transformers

from specds import drafters
from specds._core import TokenTree
from specds.generation import generate

VOCAB_SIZE = 97
WINDOW = 8

SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
WIDE = {**SHAPE, "hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
"""Sizes that the backend `native` has."""
_SPECIAL = ("vocab_size", "bos_token_id", "eos_token_id", "tie_word_embeddings")
_ALL_HEADS = {**SHAPE, "num_key_value_heads": 4}
_WINDOWED = {**SHAPE, "sliding_window": WINDOW}
_MIXED = ["sliding_attention", "full_attention"]
_OF_LAYERS = {"layer_types": _MIXED}
_CHUNKED = {**SHAPE, "attention_chunk_size": WINDOW, "attn_temperature_tuning": False}
_CHUNKED |= {"layer_types": ["chunked_attention", "full_attention"], "no_rope_layers": [1, 0]}
_CHUNKED |= {"intermediate_size_mlp": 48, "num_local_experts": 2}
_PROJECTED = {**_ALL_HEADS, "ffn_dim": 48, "word_embed_proj_dim": 32, "pad_token_id": 1}
_LATENT = {name: size for name, size in _ALL_HEADS.items() if name != "head_dim"}
_LATENT |= {"q_lora_rank": 16, "kv_lora_rank": 16, "v_head_dim": 8, "moe_intermediate_size": 16}
_LATENT |= {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "n_group": 1, "topk_group": 1}
_LATENT |= {"n_routed_experts": 4, "num_experts_per_tok": 2, "first_k_dense_replace": 1}

# name -> configuration class, its settings
FAMILIES = {
    "llama": ("LlamaConfig", SHAPE),
    "mistral": ("MistralConfig", _WINDOWED),
    "qwen2": ("Qwen2Config", SHAPE),
    "qwen3": ("Qwen3Config", SHAPE),
    "gemma3": ("Gemma3TextConfig", {**_WINDOWED, **_OF_LAYERS}),
    "gpt_neox": ("GPTNeoXConfig", SHAPE),
    "gpt2": ("GPT2Config", _ALL_HEADS),
    "qwen2_mixed": ("Qwen2Config", {**_WINDOWED, "use_sliding_window": True, **_OF_LAYERS}),
    "llama4": ("Llama4TextConfig", _CHUNKED),
    "opt": ("OPTConfig", _PROJECTED),
    "deepseek_v3": ("DeepseekV3Config", _LATENT),
}

_CONVOLUTIONS = {"layer_types": ["conv", "full_attention"] * 2, "num_hidden_layers": 4}
_DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8}
_DELTA |= {"linear_value_head_dim": 8, "layer_types": ["linear_attention", "full_attention"]}
_MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1}
_MAMBA |= {"attn_layer_indices": [1, 3], "num_hidden_layers": 4}

# Models that keep a recurrent state: by the gated delta rule, Mamba 2, short convolutions.
HYBRIDS = {
    "qwen3_5": ("Qwen3_5TextConfig", {**SHAPE, **_DELTA}),
    "bamba": ("BambaConfig", {**SHAPE, **_MAMBA}),
    "lfm2": ("Lfm2Config", {**SHAPE, **_CONVOLUTIONS}),
}


def build(config_class: str, settings: dict, dtype=torch.float32, sharpness=6.0, **options):
    """A random model from a configuration, the same in every run."""
    config = getattr(transformers, config_class)(**settings)
    if dtype == torch.float64:  # which grouped products do not take before torch 2.12
        options.setdefault("experts_implementation", "eager")
    with torch.random.fork_rng():
        torch.manual_seed(11)
        model = transformers.AutoModelForCausalLM.from_config(config, **options)
        # Random weights of the usual size give nearly uniform logits. Larger ones give logits with
        # clear winners, so that texts vary and drafts can be right.
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if weight.dim() > 1:
                    weight.normal_(std=0.5 if "embed" in name or "wte" in name else 0.25)
                elif "norm" in name and "bias" not in name:
                    weight.normal_(0.0 if "gemma" in config_class.lower() else 1.0, 0.1)
            model.get_output_embeddings().weight.mul_(sharpness / 2)
    return model.to(dtype).eval()


def unpackable():
    """A model whose attention cannot be exchanged."""
    settings = {"d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 64}
    special = {key: SHAPE[key] for key in _SPECIAL} | {"pad_token_id": None}
    return build("XGLMConfig", settings | special, attn_implementation="eager")


@cache
def tiny_model(family: str, dtype=torch.float32, attention="sdpa"):
    """The model of a family, shared by the tests: do not change it."""
    config_class, settings = (FAMILIES | HYBRIDS)[family]
    return build(config_class, settings, dtype, attn_implementation=attention)


def prompt(length: int = 21, seed: int = 0) -> torch.Tensor:
    """A random prompt, int64 `(1, length)`, longer than `WINDOW`."""
    tokens = np.random.default_rng(seed).integers(3, VOCAB_SIZE, length)
    return torch.from_numpy(tokens)[None]


def random_tree(rng: np.random.Generator, num_nodes: int, vocab_size: int = VOCAB_SIZE):
    """A random valid tree; parents tend to be recent, so that it is deep as well as wide."""
    token_ids, parents, edges = [], [], set()
    while len(token_ids) < num_nodes:
        node = len(token_ids)
        parent = int(rng.integers(max(-1, node - 4), node)) if rng.random() < 0.8 else -1
        token = int(rng.integers(vocab_size))
        if (parent, token) not in edges:
            edges.add((parent, token))
            token_ids.append(token)
            parents.append(parent)
    return TokenTree(token_ids, parents, rng.random(num_nodes))


GREEDY = {"do_sample": False}
SAMPLING = {"do_sample": True, "temperature": 4.0, "top_k": 0}


def plain_generate(model, seed=0, num_tokens=32, **kwargs):
    """Return the prompt and the tokens of `model.generate`, as a list."""
    torch.manual_seed(seed)
    ids = prompt(seed=seed).to(model.device)
    return model.generate(ids, max_new_tokens=num_tokens, **kwargs)[0].tolist()


def tree_generate(model, drafter, seed=0, num_tokens=32, max_nodes=16, **kwargs):
    torch.manual_seed(seed)
    kwargs = {"max_nodes": max_nodes, "max_new_tokens": num_tokens, **kwargs}
    return generate(model, prompt(seed=seed).to(model.device), drafter, **kwargs)


@contextmanager
def widths(model):
    """List the number of tokens that each forward pass of a model reads meanwhile."""
    found = []
    hook = model.register_forward_pre_hook(
        lambda _, __, inputs: found.append(inputs["input_ids"].shape[1]), with_kwargs=True
    )
    yield found
    hook.remove()


class Drafter:
    """Drafts by `grow(rng, position, max_nodes) -> TokenTree`, position counting all tokens."""

    def __init__(self, grow, vocab_size=VOCAB_SIZE):
        self.grow = grow
        self.vocab_size = vocab_size
        self.sessions = []

    def session(self, prompt_ids):
        self.sessions.append(Session(self.grow, prompt_ids))
        return self.sessions[-1]


class Session(drafters.Session):
    def __init__(self, grow, prompt_ids):
        self.grow = grow
        self.token_ids = [int(token) for token in prompt_ids]
        self.rng = np.random.default_rng(5)
        self.asked_nodes = []
        self.finished = 0

    def draft(self, max_nodes, *_):
        self.asked_nodes.append(max_nodes)
        return self.grow(self.rng, len(self.token_ids), max_nodes)

    def observe(self, token_ids, num_verified=None):
        self.token_ids.extend(int(token) for token in token_ids)

    def finish(self):
        self.finished += 1


def random_drafter():
    """Return a drafter of random trees of every size, which are mostly wrong."""
    return Drafter(lambda rng, _, n: random_tree(rng, int(rng.integers(n + 1))))


def oracle_drafter(sequence, num_wrong=0, vocab_size=VOCAB_SIZE):
    """Return a drafter that knows the true tokens `sequence` and drafts them as a chain.

    With `num_wrong`, each true node gets as many wrong siblings before it, and each of those
    wrong children, so that the accepted nodes are never next to one another.
    """
    truth = [int(token) for token in sequence]

    def grow(rng, position, max_nodes):
        token_ids, parents, parent = [], [], -1
        for token in truth[position:]:
            wrong = rng.choice(vocab_size, num_wrong + 1, replace=False)
            wrong = [int(other) for other in wrong if other != token][:num_wrong]
            for other in wrong:
                parents += [parent, len(token_ids)]
                token_ids += [other, token]
            if len(token_ids) >= max_nodes:
                break
            parents.append(parent)
            parent = len(token_ids)
            token_ids.append(token)
        token_ids, parents = token_ids[:max_nodes], parents[:max_nodes]
        return TokenTree(token_ids, parents, np.full(len(token_ids), 0.5))

    return Drafter(grow, vocab_size)


def mixed_drafter(sequence, vocab_size=VOCAB_SIZE):
    """Return a drafter of random trees with a few true tokens along one path; some are empty."""
    truth = [int(token) for token in sequence]

    def grow(rng, position, max_nodes):
        if rng.random() < 0.2:
            return TokenTree([], [], [])
        tree = random_tree(rng, max_nodes)
        token_ids, parents = tree.token_ids.tolist(), tree.parents.tolist()
        edges = set(zip(parents, token_ids, strict=True))
        path = max(tree.paths(), key=len)[: int(rng.integers(6))]
        for node, token in zip(path, truth[position:], strict=False):
            if (parents[node], token) in edges:
                break  # a sibling has the true token already
            token_ids[node] = token
        return TokenTree(token_ids, parents, tree.probs)

    return Drafter(grow, vocab_size)


def decodes_alike(
    model, drafter=mixed_drafter, num_tokens=32, seed=0, *, ids=None, mode=GREEDY, **settings
):
    """Assert that tokens with drafts are those of `model.generate`; return the output.

    Args:
        drafter: A drafter, or what makes one from the first of the expected texts.
        ids: The prompts; by default one by the seed.
        mode: Arguments of both calls.
        settings: Arguments of `specds.generate` alone.
    """
    ids = (prompt(seed=seed) if ids is None else ids).to(model.device)
    mode = {"max_new_tokens": num_tokens, **mode}
    torch.manual_seed(seed)
    expected = model.generate(ids, **mode).tolist()
    drafter = drafter(expected[0]) if callable(drafter) else drafter
    torch.manual_seed(seed)
    output = generate(model, ids, drafter, **{"max_nodes": 16, **mode, **settings})
    assert output.sequences.tolist() == expected
    return output


class Recorder:
    """A streamer that keeps what it gets."""

    def __init__(self):
        self.received = []

    def put(self, value):
        self.received.append((value.dtype, value.tolist()))

    def end(self):
        self.received.append("end")
