"""An EAGLE-style head: one layer of the demo's kind over features and the next embeddings."""

import torch
from torch import nn
from torch.nn import functional

HIDDEN, HEADS, KEYS, SIZE, INNER = 256, 4, 2, 64, 672


def norm():
    return nn.RMSNorm(HIDDEN, eps=1e-6)


class Head(nn.Module):
    """Predicts the target's next feature, which its output embedding reads."""

    def __init__(self):
        super().__init__()
        self.norm_e, self.norm_f, self.norm_1, self.norm_2, self.norm_out = (
            norm() for _ in range(5)
        )
        shapes = {
            "fuse": (2 * HIDDEN, HIDDEN),
            "q": (HIDDEN, HEADS * SIZE),
            "k": (HIDDEN, KEYS * SIZE),
            "v": (HIDDEN, KEYS * SIZE),
            "o": (HEADS * SIZE, HIDDEN),
            "gate": (HIDDEN, INNER),
            "up": (HIDDEN, INNER),
            "down": (INNER, HIDDEN),
        }
        for name, shape in shapes.items():
            setattr(self, name, nn.Linear(*shape, bias=False))
        freq = 1e4 ** (-torch.arange(0, SIZE, 2).float() / SIZE)
        self.register_buffer("freq", freq, persistent=False)

    def rope(self, x, positions):
        angles = positions[..., None, None].float() * self.freq
        (left, right), cos, sin = x.chunk(2, -1), angles.cos(), angles.sin()
        return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)

    def enter(self, features, embedded, positions):
        """The residual `(..., n, HIDDEN)`; queries, keys and values `(..., n, heads, SIZE)`."""
        x = self.fuse(torch.cat((self.norm_e(embedded), self.norm_f(features)), -1))
        h = self.norm_1(x)
        q, k, v = (of(h).unflatten(-1, (-1, SIZE)) for of in (self.q, self.k, self.v))
        return x, self.rope(q, positions), self.rope(k, positions), v

    def leave(self, x, attended):
        """The next features, of what attention read: `(..., n, HEADS * SIZE)`."""
        x = x + self.o(attended)
        h = self.norm_2(x)
        return self.norm_out(x + self.down(functional.silu(self.gate(h)) * self.up(h)))
