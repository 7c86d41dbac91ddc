"""Acceptance on the device of the logits: only tokens are copied to the host."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specds._core import likeliest as likeliest_of_array
from specds.generation.acceptance import PassRequest as PassRequest


def follow(
    token_ids: Tensor, depths: Tensor, parents: Tensor, visible: Tensor, choices: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the accepted path of each row: the nodes that equal the target's choices.

    Args:
        token_ids: As in `Inputs`, like `depths`, `parents` and `visible`.
        choices: int64 `(num_rows, width)`, the target's next token after each place.

    Returns:
        The number of accepted nodes, `(num_rows,)`, and at ``[row, depth]`` the place of the
        accepted node of that depth, `(num_rows, width)`; `depth` itself if there is none.
    """
    num_rows, width = choices.shape
    places = torch.arange(width, device=choices.device).expand(num_rows, width)
    drafted = token_ids == choices.gather(1, parents)
    # At depth 0 are the last token, which is its own parent, and the padding.
    chosen = torch.where(depths > 0, drafted, places == 0)
    # A token sees itself and its ancestors, and is accepted if all of these were chosen.
    accepted = (chosen[:, None] | ~visible).all(dim=-1)
    # Rejected nodes go to a column that is dropped.
    columns = torch.where(accepted, depths, width)
    path = torch.arange(width + 1, device=choices.device).repeat(num_rows, 1)
    path = path.scatter(1, columns, places)[:, :width]
    return accepted.sum(dim=1) - 1, path


def likeliest(logits: Tensor, num_predictions: int, known_tokens: int) -> Tensor:
    """Return the likeliest known tokens, `(..., num_predictions)`, or all if they are fewer."""
    if num_predictions == 0:
        return torch.empty((*logits.shape[:-1], 0), dtype=torch.int64, device=logits.device)
    known = logits[..., :known_tokens]
    return known.topk(min(num_predictions, known.shape[-1]), dim=-1).indices


def likeliest_on_host(logits: Tensor, num_predictions: int, known_tokens: int) -> NDArray[np.int64]:
    """Return `likeliest` of logits `(num_rows, vocab_size)` as an array; faster on a CPU."""
    if logits.device.type == "cpu" and logits.dtype == torch.float32:
        return likeliest_of_array(logits[:, :known_tokens].numpy(), num_predictions)
    predictions: NDArray[np.int64] = likeliest(logits, num_predictions, known_tokens).cpu().numpy()
    return predictions


def report(counts: Tensor, path: Tensor, choices: Tensor, predictions: Tensor) -> Tensor:
    """Join all that the host needs in one tensor, to copy it at once; see `read_outcomes`."""
    chosen = choices.gather(1, path)
    return torch.cat([counts[:, None], path, chosen, predictions.flatten(1)], dim=1)
