"""Calls of `tree_attention` on random trees, and the plain definition of what it computes."""

from dataclasses import dataclass, field
from unittest.mock import MagicMock

import numpy as np
import torch

from specds.transformers.kernels import operations
from specds.transformers.kernels.operations import tree_attention

TOLERANCES = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@dataclass
class Case:
    """Tensors and options of a call; slots outside the mask hold NaN."""

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

    def attend(self, **changes):
        states = self.query, self.keys, self.values
        named = {**self.options, **changes}
        if "ancestors" not in named:  # a recording cannot copy them
            named["ancestors"] = self.ancestors
        return tree_attention(*states, self.lengths, self.positions, **named)

    def seen(self, states, row, end):
        """Return the first slots of a row, for each head of the query."""
        if "block_table" in self.options:
            blocks = states[self.options["block_table"][row].long()]
            heads = blocks.transpose(0, 1).flatten(1, 2)
        else:
            heads = states[row]
        return heads[:, :end].double().repeat_interleave(self.query.shape[1] // len(heads), 0)

    def expected(self):
        """The definition, row by row and in float64."""
        width, head_dim = self.query.shape[2:]
        option, rows = self.options.get, []
        for row, length in enumerate(self.lengths.tolist()):
            end, positions = length + width, self.positions[row]
            keys, values = (self.seen(states, row, end) for states in (self.keys, self.values))
            scores = self.query[row].double() @ keys.transpose(1, 2)
            scores = scores * (option("scale") or head_dim**-0.5)
            if softcap := option("softcap"):
                scores = softcap * torch.tanh(scores / softcap)
            sees = torch.ones(width, end, dtype=torch.bool, device=self.query.device)
            sees[:, length:] = self.visible[row]
            at_slots = torch.cat((torch.arange(length, device=self.query.device), positions))
            if window := option("window"):
                sees &= at_slots > positions[:, None] - window
            if chunk := option("chunk"):
                sees &= at_slots >= positions[:, None] // chunk * chunk
            scores = scores.masked_fill(~sees, -torch.inf)
            if "sinks" in self.options:
                of_sinks = self.options["sinks"].double()[:, None, None].expand(-1, width, 1)
                scores = torch.cat((scores, of_sinks), dim=-1)
            rows.append((scores.softmax(-1)[..., :end] @ values).transpose(0, 1))
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
    parents = np.random.default_rng(seed)
    for row in visible:
        for node in range(1, width):
            row[node] |= row[parents.integers(node)]
    where = torch.tensor(lengths, device=device)
    capacity = -(-(max(lengths) + width + 3) // 16) * 16
    sizes = head_dim, value_dim or head_dim
    states = [random(num_rows, num_key_heads, capacity, size) for size in sizes]
    behind = torch.arange(capacity, device=device) >= (where + width)[:, None]
    for each in states:
        each.masked_fill_(behind[:, None, :, None], torch.nan)
    if block_size is not None:
        num_blocks = num_rows * capacity // block_size
        table = torch.randperm(num_blocks, generator=numbers, device=device).int()
        options["block_table"] = table = table.view(num_rows, -1)
        states = [_paged(each, table, block_size) for each in states]
    if with_sinks:
        options["sinks"] = random(num_heads)
    # As a projection makes it: nodes before heads.
    query = random(num_rows, width, num_heads, head_dim).transpose(1, 2)
    positions = where[:, None] + visible.sum(-1) - 1
    return Case(query, *states, where, positions, visible, options)


def _paged(states, table, block_size):
    """Return the states in blocks with vLLM's layout: slots before heads."""
    num_rows, num_heads, _, size = states.shape
    blocks = states.view(num_rows, num_heads, -1, block_size, size).transpose(1, 2).flatten(0, 1)
    pool = torch.empty_like(blocks)
    pool[table.flatten().long()] = blocks
    return pool.transpose(1, 2).contiguous().transpose(1, 2)


def launches(case, monkeypatch):
    """Return the launches of a call, by program, as `(grid, arguments, constants)`."""
    calls = {}

    def launched(name):
        kernel = MagicMock()
        kernel.__getitem__.side_effect = lambda grid: (
            lambda *args, **constants: calls.update({name: (grid, args, constants)})
        )
        monkeypatch.setattr(f"specds.transformers.kernels.programs.{name}", kernel)

    launched("attend")
    launched("merge")
    monkeypatch.setattr(operations, "kernel_reason", lambda *_: None)
    case.attend()
    return calls


def assert_near(found, expected, dtype):
    assert found.dtype == dtype
    most = TOLERANCES[dtype]
    torch.testing.assert_close(found.double(), expected, rtol=most, atol=most)
