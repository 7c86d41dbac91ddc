"""Calls of `tree_attention` on random trees, and the plain definition of what it computes."""

from dataclasses import dataclass, field

import numpy as np
import torch

from specds.verify.operations import tree_attention

TOLERANCES = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@dataclass
class Case:
    """Tensors of a call, and what else it is told; slots that nobody may read hold NaN."""

    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    lengths: torch.Tensor
    positions: torch.Tensor
    visible: torch.Tensor
    options: dict = field(default_factory=dict)

    @property
    def ancestors(self):
        """Bits by which node `i` sees node `j`."""
        width = self.visible.shape[-1]
        padded = torch.nn.functional.pad(self.visible, (0, -width % 64))
        bits = np.packbits(padded.cpu().numpy(), axis=-1, bitorder="little").view(np.int64)
        words = torch.from_numpy(bits.copy()).to(self.query.device)
        return words[..., 0] if words.shape[-1] == 1 else words

    def states(self):
        """What the nodes' tensors hold, without the rest of the options."""
        return self.query, self.keys, self.values, self.lengths, self.positions

    def attend(self, **changes):
        return tree_attention(
            *self.states(), **{"ancestors": self.ancestors, **self.options, **changes}
        )

    def expected(self):
        return reference(*self.states(), self.visible, **self.options)


def reference(
    query,
    keys,
    values,
    lengths,
    positions,
    visible,
    *,
    scale=None,
    window=None,
    chunk=None,
    softcap=None,
    sinks=None,
    block_table=None,
    scratch=None,
):
    """The definition, row by row and in float64."""
    num_heads, width, head_dim = query.shape[1:]
    rows = []
    for row, length in enumerate(lengths.tolist()):
        end = length + width
        if block_table is None:
            seen = [states[row, :, :end].double() for states in (keys, values)]
        else:
            blocks = block_table[row].long()
            seen = [
                s[blocks].transpose(0, 1).flatten(1, 2)[:, :end].double() for s in (keys, values)
            ]
        at_keys, at_values = (s.repeat_interleave(num_heads // len(s), 0) for s in seen)
        scores = query[row].double() @ at_keys.transpose(1, 2)
        scores = scores * (head_dim**-0.5 if scale is None else scale)
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        sees = torch.ones(width, end, dtype=torch.bool, device=query.device)
        sees[:, length:] = visible[row]
        at_slots = torch.cat((torch.arange(length, device=query.device), positions[row]))
        if window is not None:
            sees &= at_slots > positions[row][:, None] - window
        if chunk is not None:
            sees &= at_slots >= positions[row][:, None] // chunk * chunk
        scores = scores.masked_fill(~sees, -torch.inf)
        if sinks is not None:
            of_sinks = sinks.double()[:, None, None].expand(-1, width, 1)
            scores = torch.cat((scores, of_sinks), dim=-1)
        rows.append((scores.softmax(-1)[..., :end] @ at_values).transpose(0, 1))
    return torch.stack(rows)


def make_case(
    seed,
    lengths,
    width,
    num_key_heads,
    group,
    head_dim,
    *,
    value_dim=None,
    dtype=torch.float32,
    device="cpu",
    block_size=None,
    with_sinks=False,
    **options,
):
    """A case of random numbers, trees among them."""
    numbers = torch.Generator(device).manual_seed(seed)
    num_rows, num_heads = len(lengths), num_key_heads * group

    def random(*shape):
        return torch.randn(shape, generator=numbers, device=device).to(dtype)

    visible = torch.eye(width, dtype=torch.bool, device=device).repeat(num_rows, 1, 1)
    parents = np.random.default_rng(seed).integers(
        0, np.arange(1, max(width, 2)), (num_rows, max(width - 1, 1))
    )
    for row in range(num_rows):
        for node in range(1, width):
            visible[row, node] |= visible[row, parents[row, node - 1]]
    where = torch.tensor(lengths, device=device)
    capacity = -(-(max(lengths) + width + 3) // 16) * 16
    states = [
        random(num_rows, num_key_heads, capacity, d) for d in (head_dim, value_dim or head_dim)
    ]
    behind = torch.arange(capacity, device=device) >= (where + width)[:, None]
    for each in states:
        each.masked_fill_(behind[:, None, :, None], torch.nan)
    if block_size is not None:
        options["block_table"] = table = (
            torch.randperm(num_rows * capacity // block_size, generator=numbers, device=device)
            .view(num_rows, -1)
            .int()
        )
        states = [_paged(each, table, block_size) for each in states]
    if with_sinks:
        options["sinks"] = random(num_heads)
    # As a projection makes it: nodes before heads.
    query = random(num_rows, width, num_heads, head_dim).transpose(1, 2)
    positions = where[:, None] + visible.sum(-1) - 1
    return Case(query, *states, where, positions, visible, options)


def _paged(states, table, block_size):
    """The same states in blocks, which follow each other as in vLLM: slots before heads."""
    num_rows, num_heads, _, size = states.shape
    blocks = states.view(num_rows, num_heads, -1, block_size, size).transpose(1, 2).flatten(0, 1)
    pool = torch.empty_like(blocks)
    pool[table.flatten().long()] = blocks
    return pool.transpose(1, 2).contiguous().transpose(1, 2)


def assert_near(found, expected, dtype):
    assert found.dtype == dtype
    torch.testing.assert_close(
        found.double(), expected, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype]
    )
