"""Acceptance where the logits are: only tokens go to the host."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specds._core import likeliest as likeliest_of_array
from specds.accept.on_host import Sampler


class PassRequest(NamedTuple):
    """What to report of a pass: the sampler's choices, and the likeliest known tokens by place."""

    sampler: Sampler
    num_predictions: int = 0
    known_tokens: int = 0
    noise: Tensor | None = None


def follow(
    token_ids: Tensor, depths: Tensor, parents: Tensor, visible: Tensor, choices: Tensor
) -> tuple[Tensor, Tensor]:
    """The path of each row along which the target's choices were drafted.

    `choices`, int64 `(num_rows, width)`, are its next tokens after each place; the others are as in
    `Inputs`.

    Returns:
        How many nodes were accepted, `(num_rows,)`, and at ``[row, depth]`` the place of the
        accepted node of that depth, `(num_rows, width)`; where there is none, `depth` itself.
    """
    num_rows, width = choices.shape
    places = torch.arange(width, device=choices.device).expand(num_rows, width)
    drafted = token_ids == choices.gather(1, parents)
    # At depth 0 are the last token, which is its own parent, and the padding.
    chosen = torch.where(depths > 0, drafted, places == 0)
    # A token sees itself and its ancestors, and is accepted where all of these were chosen.
    accepted = (chosen[:, None] | ~visible).all(dim=-1)
    # What was not accepted goes to a column that is cut off.
    columns = torch.where(accepted, depths, width)
    path = torch.arange(width + 1, device=choices.device).repeat(num_rows, 1)
    path = path.scatter(1, columns, places)[:, :width]
    return accepted.sum(dim=1) - 1, path


def likeliest(logits: Tensor, num_predictions: int, known_tokens: int) -> Tensor:
    """The likeliest of the known tokens, `(..., num_predictions)`, or all where they are fewer."""
    if num_predictions == 0:
        return torch.empty((*logits.shape[:-1], 0), dtype=torch.int64, device=logits.device)
    known = logits[..., :known_tokens]
    return known.topk(min(num_predictions, known.shape[-1]), dim=-1).indices


def likeliest_on_host(logits: Tensor, most: int, known_tokens: int) -> NDArray[np.int64]:
    """`likeliest` of logits `(num_rows, vocab_size)` as an array, faster on a CPU."""
    if logits.device.type == "cpu" and logits.dtype == torch.float32:
        return likeliest_of_array(logits[:, :known_tokens].numpy(), most)
    predictions: NDArray[np.int64] = likeliest(logits, most, known_tokens).cpu().numpy()
    return predictions


def report(counts: Tensor, path: Tensor, choices: Tensor, predictions: Tensor) -> Tensor:
    """All that the host needs in one tensor, so that one copy moves it; see `read_outcomes`."""
    chosen = choices.gather(1, path)
    return torch.cat([counts[:, None], path, chosen, predictions.flatten(1)], dim=1)
