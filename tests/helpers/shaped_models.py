"""Files of a few random layers of the shapes of real models, and comparisons of their logits."""

import numpy as np

from gguf_models import BLOCKS, random_tensor, reference_logits, write_gguf
from model_shapes import layer_kinds, num_weights, tensor_type, tensors
from specds._core import ForwardCache, ForwardModel, GgufFile

ARCHITECTURES = ("gemma3", "llama", "olmo2", "qwen2", "qwen3")
"""Architectures that `reference_logits` computes."""
NUM_TOKENS = 9
_TOKENS = np.random.default_rng(7).integers(0, 512, NUM_TOKENS)
_WINDOW = 4
_MOST_WEIGHTS = 300_000_000


def is_written(shape, mix):
    """Return whether the types of all tensors of a mix, which is one of such models, are known."""
    if mix == "MXFP4" and "experts" not in shape:
        return False
    types = {tensor_type(shape, mix, name, of) for name, of in tensors(shape)}
    return shape["architecture"] in ARCHITECTURES and types <= BLOCKS.keys()


def sampled_layers(shape):
    """Return layers of each kind and, in mixes, of each type: one or two."""
    kinds = layer_kinds(shape)
    layers = [0, shape["layers"] // 8 or 1]
    if kinds[0] != kinds[-1] or len(set(kinds)) > 1:
        layers[1] = next(layer for layer, kind in enumerate(kinds) if kind != kinds[0])
    is_large = num_weights(shape) / shape["layers"] > _MOST_WEIGHTS
    return layers[:1] if is_large else layers


def metadata_of(shape, layers, window=1 << 30):
    """Return the metadata of a file of these layers, whose windows have at most `window` tokens."""
    architecture = shape["architecture"]
    fields = {
        "embedding_length": shape["hidden"], "feed_forward_length": shape["feed_forward"],
        "block_count": len(layers), "attention.head_count": shape["heads"],
        "attention.head_count_kv": shape["kv_heads"], "attention.key_length": shape["head_size"],
        "attention.value_length": shape["head_size"],
        "attention.layer_norm_rms_epsilon": shape["norm_epsilon"],
        "rope.freq_base": shape["rope_base"], "context_length": shape["context"],
    }  # fmt: skip
    if "window" in shape:
        kinds = layer_kinds(shape)
        fields["attention.sliding_window"] = min(window, shape["window"])
        pattern = [kinds[layer] == "sliding_attention" for layer in layers]
        fields["attention.sliding_window_pattern"] = pattern
    if "query_scale" in shape:
        fields["attention.scale"] = shape["query_scale"] ** -0.5
    scaling = shape.get("rope_scaling", {})
    if scaling.get("type") == "linear":
        fields |= {"rope.scaling.type": "linear", "rope.scaling.factor": scaling["factor"]}
    metadata = {"general.architecture": architecture}
    return metadata | {f"{architecture}.{name}": value for name, value in fields.items()}


def write_shaped(path, shape, mix, *, vocab=512, seed=1):
    """Write a file of `sampled_layers` with random weights; its vocabulary is `vocab` tokens."""
    random = np.random.default_rng(seed)
    layers = sampled_layers(shape)
    metadata = metadata_of(shape, layers, _WINDOW)
    scaling = shape.get("rope_scaling", {})
    written = {}
    if scaling.get("type") == "llama3":
        factors = _llama3_factors(shape).astype("<f4")
        written["rope_freqs.weight"] = ("F32", factors.shape, factors.tobytes())
    for name, dimensions in tensors(shape):
        kind = tensor_type(shape, mix, name, dimensions)
        if name.startswith("blk."):
            _, layer, part = name.split(".", 2)
            if int(layer) not in layers:
                continue
            name = f"blk.{layers.index(int(layer))}.{part}"
        elif len(dimensions) > 1:
            dimensions = (dimensions[0], vocab)
        if len(dimensions) == 1:
            middle = 0.0 if name.endswith("bias") else 1.0
            values = (middle + 0.2 * random.standard_normal(dimensions)).astype("<f4").tobytes()
        else:
            values = random_tensor(random, kind, dimensions[1], dimensions[0])
        written[name] = (kind, dimensions, values)
    return write_gguf(path, metadata, written)


def _llama3_factors(shape):
    """Return by how much each angle is divided: those of long waves by the factor."""
    scaling, size = shape["rope_scaling"], shape["head_size"]
    waves = 2 * np.pi * shape["rope_base"] ** (np.arange(0, size, 2) / size)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    share = np.clip((scaling["original_context"] / waves - low) / (high - low), 0, 1)
    return 1 / ((1 - share) / scaling["factor"] + share)


def expected_logits(path):
    """Return the reference's logits of a file, of shape (NUM_TOKENS, vocabulary)."""
    return reference_logits(GgufFile(path), _TOKENS)


def differences(path, instructions, expected):
    """Yield what differs in the logits of a file: from `expected`, or among passes.

    Portable passes are slow: they are over three tokens on one thread. Of `int8`, the median of
    the errors of tokens counts, because attention over random keys can turn to another token.
    """
    model = ForwardModel(GgufFile(path), instructions=instructions, num_threads=2)
    is_slow = instructions == "portable"
    tokens, expected = (_TOKENS[:3], expected[:3]) if is_slow else (_TOKENS, expected)
    for activations, allowed in (("float32", 1e-4), ("int8", 0.1)):
        logits = _chain(model, tokens, activations, 1)
        errors = np.sqrt(np.square(logits - expected).mean(-1)) / expected.std()
        error = errors.max() if activations == "float32" else np.median(errors)
        if not error <= allowed:
            yield f"{activations}: {error:.2g} of the spread from the reference"
        if is_slow:
            continue
        if not np.array_equal(_chain(model, tokens, activations, 3), logits):
            yield f"{activations}: other logits by three threads"
        if not np.array_equal(_tree(model, tokens, activations), logits[4:]):
            yield f"{activations}: other logits in a tree"


def _chain(model, tokens, activations, num_threads):
    inputs = [(0, tokens, None, len(tokens))]
    return model.forward(
        ForwardCache(model), inputs, activations=activations, num_threads=num_threads
    )


def _tree(model, tokens, activations):
    """Return the logits after the fourth token, from a tree with a wrong node next to each."""
    cache = ForwardCache(model)
    model.forward(cache, [(0, tokens[:4], None, 0)], activations=activations)
    cache.commit(0, range(4))
    nodes, parents, path = [], [], []
    for token in tokens[4:]:
        parent = path[-1] if path else -1
        nodes += [3, token]
        parents += [parent, parent]
        path.append(len(nodes) - 1)
    inputs = [(0, nodes, parents, len(nodes))]
    return model.forward(cache, inputs, activations=activations, num_threads=2)[path]
