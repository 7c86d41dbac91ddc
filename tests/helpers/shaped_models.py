"""Files of a few random layers of the shapes of real models, and comparisons of their logits."""

import math
from pathlib import Path

import numpy as np

from gguf_models import BLOCKS, random_tensor, write_gguf
from model_shapes import layer_kinds, tensor_type, tensors
from shaped_reference import ShapedReference, llama3_factors, longrope_factors
from specds._core import ForwardCache, ForwardModel, GgufFile

NOT_COMPUTED = ("granitehybrid",)
"""Architectures that the core does not have."""
NUM_TOKENS = 5
_WINDOW = 4
_MOST_WEIGHTS = 200_000_000  # of a layer that a second one of its kind follows
_HUGE = 1_500_000_000  # of a layer that no other one is next to
_MOST_EXPERTS = 200_000_000  # of the experts of a layer, unless a mix has all
_NAMES_OF_SCALES = {"embedding": "embedding_scale", "residual": "residual_scale"}
_NAMES_OF_SCALES |= {"attention": "attention.scale", "logits": "logit_scale"}


def is_written(shape, mix):
    """Return whether the core computes a shape that has such a mix: MXFP4 is one of experts."""
    return shape["architecture"] not in NOT_COMPUTED and (mix != "MXFP4" or "experts" in shape)


def sampled_layers(shape):
    """Return layers of each kind and, in mixes, of each type: one or two, or one more period.

    Each fourth layer of some models is not rotated, by its number alone.
    """
    if "without_rope" in shape:
        return [*range(shape["without_rope"])]
    kinds = layer_kinds(shape)
    layers = [0, shape["layers"] // 8 or 1]
    if len(set(kinds)) == 1:
        return layers[: 1 if _num_weights(shape, 0) > _MOST_WEIGHTS else 2]
    layers[1] = next(layer for layer, kind in enumerate(kinds) if kind != kinds[0])
    return layers[1:] if _num_weights(shape, layers[1]) > _HUGE else layers


def reduced(shape, mix):
    """Return a shape with as many experts as memory allows; `MXFP4` has all of them."""
    if "experts" not in shape or mix == "MXFP4":
        return shape
    experts = shape["experts"]
    most = _MOST_EXPERTS // (3 * shape["hidden"] * experts["feed_forward"])
    number = min(experts["number"], max(most, experts["used"] + 1))
    return {**shape, "experts": {**experts, "number": number}}


def metadata_of(shape, layers, window=1 << 30):
    """Return the metadata of a file of these layers, whose windows have at most `window` tokens."""
    architecture, kinds = shape["architecture"], layer_kinds(shape)
    kinds = [kinds[layer] for layer in layers]
    experts, scaling = shape.get("experts", {}), shape.get("rope_scaling", {})
    fields = {
        "embedding_length": shape["hidden"], "feed_forward_length": shape["feed_forward"],
        "block_count": len(layers), "attention.head_count": shape["heads"],
        "attention.head_count_kv": shape["kv_heads"], "attention.key_length": shape["head_size"],
        "attention.value_length": shape["head_size"],
        "attention.layer_norm_rms_epsilon": shape["norm_epsilon"],
        "rope.freq_base": shape["rope_base"], "context_length": shape["context"],
        "rope.dimension_count": shape.get("rope_dimensions"),
        "rope.freq_base_swa": shape.get("rope_base_local"),
        "attn_logit_softcapping": shape.get("attention_softcap"),
        "final_logit_softcapping": shape.get("logit_softcap"),
        "attention.temperature_scale": shape.get("query_scale_beta"),
        "expert_count": experts.get("number"), "expert_used_count": experts.get("used"),
        "expert_feed_forward_length": experts.get("feed_forward"),
        "expert_shared_feed_forward_length": experts.get("shared_feed_forward"),
        "rope.scaling.factor": scaling.get("factor"),
        "rope.scaling.original_context_length": scaling.get("original_context"),
        "rope.scaling.yarn_beta_fast": scaling.get("beta_fast"),
        "rope.scaling.yarn_beta_slow": scaling.get("beta_slow"),
        "rope.scaling.yarn_log_multiplier": scaling.get("mscale_all_dim"),
    }  # fmt: skip
    if scaling.get("type") in ("linear", "yarn"):
        fields["rope.scaling.type"] = scaling["type"]
    elif scaling.get("type") == "llama3":
        fields["rope.scaling.factor"] = None  # divisors in a tensor have it
    elif scaling.get("type") == "longrope":
        ratio = math.log(shape["context"] / scaling["original_context"])
        scale = math.sqrt(1 + ratio / math.log(scaling["original_context"]))
        fields["rope.scaling.attn_factor"] = scale
    if "window" in shape:
        fields["attention.sliding_window"] = min(window, shape["window"])
        pattern = [kind == "sliding_attention" for kind in kinds]
        fields["attention.sliding_window_pattern"] = pattern
    if "query_scale" in shape:
        fields["attention.scale"] = shape["query_scale"] ** -0.5
    for name, scale in shape.get("scales", {}).items():
        fields[_NAMES_OF_SCALES[name]] = scale
    if "conv_kernel" in shape:
        fields["shortconv.l_cache"] = shape["conv_kernel"]
        fields["attention.head_count_kv"] = [shape["kv_heads"] * (of != "conv") for of in kinds]
    if "leading_dense" in experts:
        fields["leading_dense_block_count"] = sum(of < experts["leading_dense"] for of in layers)
        fields["expert_gating_func"] = 2
    if sizes := shape.get("delta_net"):
        whole = kinds.index("full_attention") + 1 if "full_attention" in kinds else 4
        fields |= {
            "ssm.conv_kernel": sizes["conv_kernel"], "ssm.state_size": sizes["key_size"],
            "ssm.group_count": sizes["key_heads"], "ssm.time_step_rank": sizes["value_heads"],
            "ssm.inner_size": sizes["value_heads"] * sizes["value_size"],
            "full_attention_interval": whole,
            # Pairs of times, heights and widths of an image: of text, all are its position.
            "rope.dimension_sections": [11, 11, 10, 0] if "35" in architecture else None,
        }  # fmt: skip
    named = {f"{architecture}.{name}": of for name, of in fields.items() if of is not None}
    return {"general.architecture": architecture, **named}


class ShapedFile:
    """A file of random layers of a shape, in the types of a mix.

    Attributes:
        path: The file.
        shape: The shape of its layers and of its vocabulary.
        layers: The number in the model of each layer.
    """

    def __init__(self, path, shape, mix, *, vocab=512, seed=1, window=_WINDOW, tokenizer=None):
        self.path, self.shape = Path(path), {**reduced(shape, mix), "vocab": vocab}
        self.layers = sampled_layers(self.shape)
        self._tensors = dict(self._made(mix, np.random.default_rng(seed)))
        self.window = window
        fields = metadata_of(self.shape, self.layers, window) | (tokenizer or {})
        write_gguf(self.path, fields, self._tensors)

    def _made(self, mix, random):
        """Yield the name, type, dimensions and bytes of each tensor."""
        scaling = self.shape.get("rope_scaling", {}).get("type")
        if scaling == "llama3":
            yield "rope_freqs.weight", _floats(llama3_factors(self.shape))
        if scaling == "longrope":
            for name in ("short", "long"):
                yield f"rope_factors_{name}.weight", _floats(longrope_factors(self.shape))
        for name, dimensions in tensors(self.shape):
            kind = tensor_type(self.shape, mix, name, dimensions)
            if name.startswith("blk."):
                _, layer, part = name.split(".", 2)
                if int(layer) not in self.layers:
                    continue
                name = f"blk.{self.layers.index(int(layer))}.{part}"
            if kind == "F32" and "gate_inp" not in name:
                yield name, _floats(_small(random, name, dimensions[::-1]))
                continue
            # Sums are of the size of the states; those of a router are larger.
            spread = (3.0 if "gate_inp" in name else 1.0) / math.sqrt(dimensions[0])
            rows = math.prod(dimensions[1:])
            yield name, (kind, dimensions, random_tensor(random, kind, rows, dimensions[0], spread))

    def rows(self, name, start, stop):
        """Return rows of a tensor as float32, from a file of these alone."""
        kind, dimensions, contents = self._tensors[name]
        _, weights, size, _ = BLOCKS[kind]
        size = dimensions[0] // weights * size
        path = self.path.with_suffix(".rows")
        part = contents[start * size : stop * size]
        write_gguf(path, {}, {"rows": (kind, (dimensions[0], stop - start), part)})
        return GgufFile(path).tensor("rows")

    def tokens(self):
        """Return the tokens that passes are over."""
        return np.random.default_rng(7).integers(0, self.shape["vocab"], NUM_TOKENS)

    def expected(self, tokens=None, places=None):
        """Return the reference's logits at places of these tokens, by default all of `tokens`."""
        kinds = layer_kinds(self.shape)
        kinds = [kinds[layer] for layer in self.layers]
        reference = ShapedReference(self.shape, self.layers, kinds, self.rows, self.window, places)
        return reference.logits(self.tokens() if tokens is None else tokens)

    def release(self):
        """Forget the contents of tensors, which are in the file."""
        self._tensors.clear()


def _floats(values):
    return "F32", values.shape[::-1], values.astype("<f4").tobytes()


def _small(random, name, shape):
    """Return random numbers of a vector or a convolution."""
    values = random.standard_normal(shape)
    if "conv" in name:
        return values / math.sqrt(shape[-1])
    if name.endswith("ssm_a"):
        return -np.exp(0.5 * values)
    if name.endswith("sinks.weight"):
        return values
    return (0.0 if name.endswith("bias") else 1.0) + 0.2 * values


def differences(file, instructions, expected, turn=0):
    """Yield what differs in the logits of a file: from `expected`, or among passes.

    Args:
        file: A `ShapedFile`.
        instructions: The instructions of the passes.
        expected: Its logits.
        turn: The number of threads, and the activations of which a tree (of recurrent models, a
            chain in parts) is computed, take turns by it.
    """
    model = ForwardModel(GgufFile(file.path), instructions=instructions, num_threads=2)
    tokens, computed = file.tokens(), ["float32", "int8"]
    in_parts = computed[turn % 2]
    for place, activations in enumerate(computed):
        logits = _chain(model, tokens, activations, 1 + (turn + place) % 3)
        errors = logits - expected[: len(tokens)]
        errors = np.sqrt(np.square(errors).mean(-1)) / expected.std()
        # A token can take another expert.
        is_median = "experts" in file.shape and activations == "int8"
        error = np.median(errors) if is_median else errors.max()
        if not error <= (1e-4 if activations == "float32" else 0.1):
            yield f"{activations}: {error:.2g} of the spread from the reference"
        if activations == in_parts:
            parts = _tree if model.takes_trees else _chain_in_parts
            others = parts(model, tokens, activations, 1 + (turn + place + 1) % 3)
            if not np.array_equal(others, logits[1:]):
                yield f"{activations}: other logits in a tree or in parts"


def _chain(model, tokens, activations, num_threads):
    inputs = [(0, tokens, None, len(tokens))]
    return model.forward(
        ForwardCache(model), inputs, activations=activations, num_threads=num_threads
    )


def forked(tokens):
    """Return the tokens and parents of a tree with a wrong node next to each, and the path."""
    nodes, parents, path = [], [], []
    for token in tokens:
        parent = path[-1] if path else -1
        nodes += [3, token]
        parents += [parent, parent]
        path.append(len(nodes) - 1)
    return nodes, parents, path


def _tree(model, tokens, activations, num_threads):
    """Return the logits after the first token, from a tree with a wrong node next to each."""
    cache = ForwardCache(model)
    options = {"activations": activations, "num_threads": num_threads}
    model.forward(cache, [(0, tokens[:1], None, 0)], **options)
    cache.commit(0, [0])
    nodes, parents, path = forked(tokens[1:])
    return model.forward(cache, [(0, nodes, parents, len(nodes))], **options)[path]


def _chain_in_parts(model, tokens, activations, num_threads):
    """Return the logits after the first token, which alone is kept of a chain with wrong ones."""
    cache = ForwardCache(model)
    options = {"activations": activations, "num_threads": num_threads}
    wrong = [tokens[0], 3, 3]
    model.forward(cache, [(0, wrong, None, 0)], **options)
    cache.commit(0, [0])
    return model.forward(cache, [(0, tokens[1:], None, len(tokens) - 1)], **options)


def _num_weights(shape, layer):
    return sum(
        math.prod(dimensions)
        for name, dimensions in tensors({**shape, "layers": layer + 1})
        if name.startswith(f"blk.{layer}.")
    )
