"""Logits of models of the shapes table in float64, from a shape and not from a file's metadata."""

from functools import cache

import numpy as np

from model_shapes import last_norm

_BY_NEIGHBORS = ("llama", "mistral3", "smollm3", "granite", "glm4")
_AROUND = ("gemma2", "gemma3", "glm4")
_AFTER = ("olmo2", "exaone4")
_GATED = ("qwen3next", "qwen35", "qwen35moe")
_MOST_WEIGHTS = 1 << 21  # at once, which caches hold as float64


class ShapedReference:
    """Some layers of a shape.

    Args:
        shape: The shape.
        layers: The number in the model of each layer.
        kinds: The kind of each layer.
        weights: `weights(name, start, stop)` returns rows of a tensor as float32.
        window: The number of tokens that a token sees in layers with a window.
        places: The tokens whose logits are computed, by default all; the last layer, which must
            have attention, is computed for these alone.
    """

    def __init__(self, shape, layers, kinds, weights, window, places=None):
        self.shape, self.layers, self.kinds = shape, layers, kinds
        self.weights, self.window, self.places = weights, window, places
        self.architecture = shape["architecture"]

    def logits(self, tokens):
        """Return the logits after the tokens at all places, `(num_places, vocab)`."""
        shape, scales = self.shape, self.shape.get("scales", {})
        states = np.concatenate([self.rows("token_embd.weight", of, of + 1) for of in tokens])
        states = states * scales.get("embedding", 1.0)
        if self.architecture.startswith("gemma"):
            states = states * np.sqrt(shape["hidden"])
        for layer, kind in enumerate(self.kinds):
            states = self.layer(layer, kind, states)
        head = "token_embd.weight" if shape["tied"] else "output.weight"
        states = self.norm(states, last_norm(shape))
        logits = self.product(states, head, shape["vocab"]) / scales.get("logits", 1.0)
        cap = shape.get("logit_softcap")
        return np.tanh(logits / cap) * cap if cap else logits

    def layer(self, layer, kind, states):
        of = f"blk.{layer}."
        is_around, is_after = self.architecture in _AROUND, self.architecture in _AFTER
        before = "post_attention_norm" if self.architecture in (*_GATED, "gpt-oss") else "ffn_norm"
        by = self.shape.get("scales", {}).get("residual", 1.0)
        mix = {"conv": self.convolution, "linear_attention": self.delta_net}
        mix = mix.get(kind, self.attention)
        feed = self.experts if self.has_experts(layer) else self.dense
        for part, first, last in (
            (lambda states: mix(layer, kind, states), "attn_norm", "post_attention_norm"),
            (lambda states: feed(of, states), before, "post_ffw_norm"),
        ):
            added = part(states if is_after else self.norm(states, f"{of}{first}.weight"))
            if is_around or is_after:
                added = self.norm(added, f"{of}{last}.weight")
            if len(added) < len(states):
                states = states[self.places]
            states = states + by * added
        return states

    def has_experts(self, layer):
        experts = self.shape.get("experts")
        return experts is not None and self.layers[layer] >= experts.get("leading_dense", 0)

    def rows(self, name, start=0, stop=1):
        return self.weights(name, start, stop).astype(np.float64)

    def product(self, states, name, number, start=0):
        """Return the products with `number` rows."""
        stop, step = start + number, max(_MOST_WEIGHTS // states.shape[-1], 1)
        parts = [
            states @ self.rows(name, first, min(first + step, stop)).T
            for first in range(start, stop, step)
        ]
        return np.concatenate(parts, -1)

    def norm(self, states, name):
        return _rms_norm(states, self.shape["norm_epsilon"]) * self.rows(name)[0]

    def attention(self, layer, kind, states):
        shape, of = self.shape, f"blk.{layer}."
        is_last = self.places is not None and layer == len(self.layers) - 1
        places = np.array(self.places if is_last else range(len(states)))
        heads, kv_heads, size = shape["heads"], shape["kv_heads"], shape["head_size"]
        has_gates = self.architecture in _GATED
        sizes = [heads * size * (2 if has_gates else 1), kv_heads * size, kv_heads * size]
        if self.architecture == "phi3":
            projected = self.product(states, f"{of}attn_qkv.weight", sum(sizes))
            parts = np.split(projected, np.cumsum(sizes)[:2], -1)
            parts[0] = parts[0][places]
        else:
            parts = [
                self.product(
                    states[places] if name == "q" else states, f"{of}attn_{name}.weight", rows
                )
                for name, rows in zip("qkv", sizes, strict=True)
            ]
        if self.architecture in ("qwen2", "glm4", "gpt-oss"):
            parts = [
                part + self.rows(f"{of}attn_{name}.bias")[0]
                for name, part in zip("qkv", parts, strict=True)
            ]
        if has_gates:
            both = parts[0].reshape(-1, heads, 2, size)
            parts[0], gates = (both[:, :, of].reshape(len(both), -1) for of in (0, 1))
        for place, name in enumerate("qk"):
            norm = f"{of}attn_{name}_norm.weight"
            if self.architecture == "olmo2":
                parts[place] = self.norm(parts[place], norm)
            parts[place] = parts[place].reshape(len(parts[place]), -1, size)
            if self.architecture in (
                "qwen3", "qwen3moe", "gemma3", "exaone4", "lfm2", "lfm2moe", *_GATED,
            ):  # fmt: skip
                parts[place] = self.norm(parts[place], norm)
            positions = places if name == "q" else np.arange(len(states))
            parts[place] = self.rotated(layer, kind, parts[place], positions)
        parts = (part.reshape(len(part), -1, size) for part in parts)
        queries, keys, values = (part.repeat(heads // part.shape[1], 1) for part in parts)
        scores = np.einsum("qhd,khd->hqk", queries, keys) * self.score_scale()
        if cap := shape.get("attention_softcap"):
            scores = np.tanh(scores / cap) * cap
        distance = places[:, None] - np.arange(len(states))
        window = self.window if kind == "sliding_attention" else len(states)
        scores = np.where((distance < 0) | (distance >= window), -np.inf, scores)
        if self.architecture == "gpt-oss":
            sinks = self.rows(f"{of}attn_sinks.weight")[0][:, None, None]
            scores = np.concatenate([scores, np.broadcast_to(sinks, (heads, len(places), 1))], -1)
        shares = _softmax(scores)[..., : len(states)]
        attended = np.einsum("hqk,khd->qhd", shares, values).reshape(len(places), -1)
        if has_gates:
            attended = attended * _sigmoid(gates)
        added = self.product(attended, f"{of}attn_output.weight", shape["hidden"])
        has_bias = self.architecture == "gpt-oss"
        return added + self.rows(f"{of}attn_output.bias")[0] if has_bias else added

    def score_scale(self):
        scales, size = self.shape.get("scales", {}), self.shape["head_size"]
        return scales.get("attention") or self.shape.get("query_scale", size) ** -0.5

    def rotated(self, layer, kind, heads, positions):
        """Turn `(num_tokens, num_heads, head_size)` by positions."""
        shape = self.shape
        size = shape.get("rope_dimensions", shape["head_size"])
        is_local = kind == "sliding_attention"
        if "without_rope" in shape and (self.layers[layer] + 1) % shape["without_rope"] == 0:
            return heads
        if self.architecture == "exaone4" and "window" in shape and not is_local:
            return heads
        if self.architecture == "gemma3" and is_local:
            angles, magnitude = shape["rope_base_local"] ** -(np.arange(0, size, 2) / size), 1.0
        else:
            angles, magnitude = self.angles(size)
        angles = positions[:, None, None] * angles
        cos, sin = np.cos(angles) * magnitude, np.sin(angles) * magnitude
        turned = heads.copy()
        if self.architecture in _BY_NEIGHBORS:
            first, second = slice(0, size, 2), slice(1, size, 2)
        else:
            first, second = slice(0, size // 2), slice(size // 2, size)
        turned[..., first] = heads[..., first] * cos - heads[..., second] * sin
        turned[..., second] = heads[..., first] * sin + heads[..., second] * cos
        return turned

    def angles(self, size):
        """Return the angles of position 1, and a factor of what is rotated."""
        shape, scaling = self.shape, self.shape.get("rope_scaling", {})
        angles = shape["rope_base"] ** -(np.arange(0, size, 2) / size)
        if scaling.get("type") == "linear":
            return angles / scaling["factor"], 1.0
        if scaling.get("type") == "llama3":
            return angles / llama3_factors(shape), 1.0
        if scaling.get("type") == "longrope":
            ratio = np.log(shape["context"] / scaling["original_context"])
            magnitude = np.sqrt(1 + ratio / np.log(scaling["original_context"]))
            return angles / longrope_factors(shape), magnitude
        if scaling.get("type") == "yarn":
            original, factor = scaling["original_context"], scaling["factor"]
            turns = np.array([scaling["beta_fast"], scaling["beta_slow"]])
            ramp = size * np.log(original / (turns * 2 * np.pi)) / (2 * np.log(shape["rope_base"]))
            if self.architecture != "gpt-oss":
                ramp = np.array([np.floor(ramp[0]), np.ceil(ramp[1])])
            start, stop = max(ramp[0], 0), min(ramp[1], size - 1)
            divided = np.clip((np.arange(size // 2) - start) / (stop - start), 0, 1)
            magnitude = 1 + 0.1 * np.log(factor)
            if "mscale_all_dim" in scaling:
                magnitude /= 1 + 0.1 * scaling["mscale_all_dim"] * np.log(factor)
            return angles * (divided / factor + 1 - divided), magnitude
        return angles, 1.0

    def dense(self, of, states):
        wide = self.shape["feed_forward"]
        if self.architecture in ("phi3", "glm4"):
            both = self.product(states, f"{of}ffn_up.weight", 2 * wide)
            gate, up = both[:, :wide], both[:, wide:]
        else:
            gate, up = (
                self.product(states, f"{of}ffn_{name}.weight", wide) for name in ("gate", "up")
            )
        is_gelu = self.architecture.startswith("gemma")
        gated = (_gelu(gate) if is_gelu else _silu(gate)) * up
        return self.product(gated, f"{of}ffn_down.weight", self.shape["hidden"])

    def experts(self, of, states):
        experts, hidden = self.shape["experts"], self.shape["hidden"]
        used, wide = experts["used"], experts["feed_forward"]
        logits = self.product(states, f"{of}ffn_gate_inp.weight", experts["number"])
        is_oss, is_sigmoid = self.architecture == "gpt-oss", self.architecture == "lfm2moe"
        if is_oss:
            logits = logits + self.rows(f"{of}ffn_gate_inp.bias")[0]
        scores = _sigmoid(logits) if is_sigmoid else _softmax(logits)
        ranks = scores + self.rows(f"{of}exp_probs_b.bias")[0] if is_sigmoid else scores
        chosen = np.argsort(-ranks, -1, kind="stable")[:, :used]
        taken = np.take_along_axis(scores, chosen, -1)
        taken = taken / (taken.sum(-1, keepdims=True) + (1e-6 if is_sigmoid else 0.0))
        added = np.zeros_like(states)
        for expert in np.unique(chosen):
            tokens, places = np.nonzero(chosen == expert)
            gate, up = (
                self.product(states[tokens], f"{of}ffn_{name}_exps.weight", wide, expert * wide)
                for name in ("gate", "up")
            )
            if is_oss:
                gate = gate + self.rows(f"{of}ffn_gate_exps.bias", expert, expert + 1)
                up = up + self.rows(f"{of}ffn_up_exps.bias", expert, expert + 1)
                gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
                gated = gate * _sigmoid(1.702 * gate) * (up + 1)
            else:
                gated = _silu(gate) * up
            down = self.product(gated, f"{of}ffn_down_exps.weight", hidden, expert * hidden)
            if is_oss:
                down = down + self.rows(f"{of}ffn_down_exps.bias", expert, expert + 1)
            added[tokens] += taken[tokens, places][:, None] * down
        if wide := experts.get("shared_feed_forward"):
            gate, up = (
                self.product(states, f"{of}ffn_{name}_shexp.weight", wide)
                for name in ("gate", "up")
            )
            shared = self.product(_silu(gate) * up, f"{of}ffn_down_shexp.weight", hidden)
            added += shared * _sigmoid(self.product(states, f"{of}ffn_gate_inp_shexp.weight", 1))
        return added

    def convolution(self, layer, _, states):
        of, hidden = f"blk.{layer}.shortconv.", self.shape["hidden"]
        projected = self.product(states, f"{of}in_proj.weight", 3 * hidden)
        before, after, inputs = np.split(projected, 3, -1)
        mixed = _convolved(before * inputs, self.rows(f"{of}conv.weight", 0, hidden))
        return self.product(after * mixed, f"{of}out_proj.weight", hidden)

    def delta_net(self, layer, _, states):
        of, sizes, number = f"blk.{layer}.", self.shape["delta_net"], len(states)
        key_heads, heads = sizes["key_heads"], sizes["value_heads"]
        size, of_keys, of_values = (
            sizes["key_size"],
            key_heads * sizes["key_size"],
            heads * sizes["value_size"],
        )
        channels = 2 * of_keys + of_values
        mixed = self.product(states, f"{of}attn_qkv.weight", channels)
        mixed = _silu(_convolved(mixed, self.rows(f"{of}ssm_conv1d.weight", 0, channels)))
        gates = self.product(states, f"{of}attn_gate.weight", of_values)
        shared, is_tiled = heads // key_heads, self.architecture != "qwen3next"
        if is_tiled:
            rates = self.product(states, f"{of}ssm_beta.weight", heads)
            decays = self.product(states, f"{of}ssm_alpha.weight", heads)
        else:
            both = self.product(states, f"{of}ssm_ba.weight", 2 * heads)
            both = both.reshape(number, key_heads, 2, shared)
            rates, decays = (both[:, :, part].reshape(number, heads) for part in (0, 1))
        decays = decays + self.rows(f"{of}ssm_dt.bias")[0]
        decays = np.exp(self.rows(f"{of}ssm_a")[0] * np.logaddexp(decays, 0))
        rates = _sigmoid(rates)
        parts = np.split(mixed, [of_keys, 2 * of_keys], -1)
        queries, keys = (part.reshape(number, key_heads, size) for part in parts[:2])
        values = parts[2].reshape(number, heads, -1)
        queries, keys = (
            part / np.sqrt(np.square(part).sum(-1, keepdims=True) + 1e-6)
            for part in (queries, keys)
        )
        of_heads = np.arange(heads) % key_heads if is_tiled else np.arange(heads) // shared
        queries, keys = queries[:, of_heads] / np.sqrt(size), keys[:, of_heads]
        memory, outputs = np.zeros((heads, size, values.shape[-1])), []
        for token in range(number):
            memory = memory * decays[token][:, None, None]
            known = np.einsum("hk,hkv->hv", keys[token], memory)
            change = (values[token] - known) * rates[token][:, None]
            memory = memory + keys[token][:, :, None] * change[:, None]
            outputs.append(np.einsum("hk,hkv->hv", queries[token], memory))
        outputs = self.norm(np.stack(outputs), f"{of}ssm_norm.weight").reshape(number, -1)
        return self.product(outputs * _silu(gates), f"{of}ssm_out.weight", self.shape["hidden"])


def llama3_factors(shape):
    """Return by how much each angle is divided: those of long waves by the factor."""
    scaling, size = shape["rope_scaling"], shape["head_size"]
    waves = 2 * np.pi * shape["rope_base"] ** (np.arange(0, size, 2) / size)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    share = np.clip((scaling["original_context"] / waves - low) / (high - low), 0, 1)
    return 1 / ((1 - share) / scaling["factor"] + share)


def longrope_factors(shape):
    """Return divisors of angles in short contexts: any numbers from 1 to 2, as files have them."""
    return np.linspace(1, 2, shape.get("rope_dimensions", shape["head_size"]) // 2)


def _convolved(inputs, taps):
    """Convolve `(num_tokens, num_channels)` by `(num_channels, kernel_size)`, the last tap now."""
    size = taps.shape[1]
    padded = np.concatenate([np.zeros((size - 1, inputs.shape[1])), inputs])
    return sum(padded[place : place + len(inputs)] * taps[:, place] for place in range(size))


def _rms_norm(states, epsilon):
    return states / np.sqrt(np.square(states).mean(-1, keepdims=True) + epsilon)


def _softmax(logits):
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _sigmoid(values):
    return 1 / (1 + np.exp(-values))


def _silu(values):
    return values * _sigmoid(values)


def _gelu(values):
    return 0.5 * values * (1 + np.tanh(np.sqrt(2 / np.pi) * (values + 0.044715 * values**3)))


def reference_logits(file, tokens):
    """Return the logits after each of these tokens, by a file of `gguf_models.write_model`."""
    architecture = file["general.architecture"]
    fields = {key.removeprefix(f"{architecture}."): file[key] for key in map(str, file.keys())}
    shape = {
        "architecture": architecture, "hidden": fields["embedding_length"],
        "feed_forward": fields["feed_forward_length"], "heads": fields["attention.head_count"],
        "kv_heads": fields["attention.head_count_kv"],
        "head_size": fields["attention.key_length"],
        "norm_epsilon": fields["attention.layer_norm_rms_epsilon"],
        "rope_base": fields["rope.freq_base"], "rope_base_local": 1e4,
        "tied": "output.weight" not in file.tensors(),
        "logit_softcap": fields.get("final_logit_softcapping"),
    }  # fmt: skip
    if "rope.scaling.type" in fields:
        scaling = {name: fields[f"rope.scaling.{name}"] for name in ("type", "factor")}
        shape["rope_scaling"] = scaling
    window, layers = fields.get("attention.sliding_window"), [*range(fields["block_count"])]
    is_whole = [not window or (architecture == "gemma3" and layer % 6 == 5) for layer in layers]
    kinds = ["full_attention" if of else "sliding_attention" for of in is_whole]
    tensor = cache(file.tensor)
    shape["vocab"] = len(tensor("token_embd.weight"))
    weights = lambda name, start, stop: tensor(name)[start:stop]  # noqa: E731
    return ShapedReference(shape, layers, kinds, weights, window).logits(tokens)
