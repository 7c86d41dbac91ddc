"""Tables of a model: its unigram ranking and bigrams, computed once and cached on disk.

The files ``tables-FINGERPRINT-K.npz`` in the cache folder can be removed at any time.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from specds._core import ModelTables
from specds.models.cache_folder import cache_folder, keep, read_kept
from specds.models.tokenization import model_vocab_size

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Raised when the computation changes, so that older files are not used.
_VERSION = 1
_MOST_VALUES = 64
# Logits, or values of embeddings, in one batch: 128 MiB in single precision.
_BATCH_ELEMENTS = 1 << 25
_MOST_TOKENS = 1024
# Bound on the overhead of an archive of three arrays.
_MOST_HEADER_BYTES = 4096


OnTable = Callable[[str, int, int], Any]


def load_tables(
    model: PreTrainedModel,
    k: int = 25,
    folder: str | os.PathLike[str] | None = None,
    progress: OnTable | None = None,
) -> ModelTables:
    """Return the tables of a model from the cache, or compute and cache them.

    Args:
        k: Number of next tokens after each token; the N-Grammys paper uses at most 25.
        progress: Called during computation with a stage, the tokens done, and the vocabulary size.

    Raises:
        ValueError: `k` is not positive, the model is in training mode or has no embeddings to
            compare.
    """
    if k < 1:
        raise ValueError(f"k must be positive, got {k}")
    k = min(k, model_vocab_size(model))
    path = Path(folder or cache_folder()) / f"tables-{fingerprint(model)}-{k}.npz"
    found = _read(path, model_vocab_size(model), k)
    if found is not None:
        return found
    tables = compute_tables(model, k, progress)
    try:
        _write(path, tables)
    except OSError as error:
        warnings.warn(
            f"tables of the model are not cached ({error}): set SPECDS_CACHE to a writable folder",
            stacklevel=2,
        )
    return tables


def compute_tables(
    model: PreTrainedModel, k: int = 25, progress: OnTable | None = None
) -> ModelTables:
    """Compute the tables of a model, with one forward pass per thousand tokens."""
    if model.training:
        raise ValueError("the model is in training mode, where dropout is random: call eval()")
    return ModelTables(*bigram_table(model, k, progress), unigram_ranking(model))


@torch.no_grad()
def unigram_ranking(model: PreTrainedModel) -> NDArray[np.int64]:
    """Rank the vocabulary by the model's unigram, best first (N-Grammys paper, section 4.1).

    ``p(x) ~ exp(-d(x))`` with ``d(x) = |u_x - mean u|`` for the rows `u` of the output embedding,
    in the norm of ``<a, b> = a V^T V b^T`` for the input embedding `V`. This is the distance of the
    paper's text; the listing in its appendix B.1 ranks by ``<mean u, u_x>``, not a distance.
    """
    inputs: Any = model.get_input_embeddings()
    outputs: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if outputs is None or inputs.weight.shape[1] != outputs.weight.shape[1]:
        raise ValueError(
            "the model's input and output embeddings differ in width, so it has no unigram: use a "
            "strategy of the context alone"
        )
    vocab_size = model_vocab_size(model)
    inputs, outputs = (layer.weight[:vocab_size] for layer in (inputs, outputs))
    dtype = torch.promote_types(outputs.dtype, torch.float32)
    width = outputs.shape[1]
    rows = max(1, _BATCH_ELEMENTS // width)
    products = torch.zeros((width, width), dtype=dtype, device=outputs.device)
    for part in inputs.to(outputs.device).split(rows):
        products += part.to(dtype).T @ part.to(dtype)
    mean = outputs.mean(dim=0, dtype=dtype)
    differences = (part.to(dtype) - mean for part in outputs.split(rows))
    squares = torch.cat([((part @ products) * part).sum(dim=1) for part in differences])
    ranking: NDArray[np.int64] = squares.argsort(stable=True).cpu().numpy()
    return ranking


@torch.no_grad()
def bigram_table(
    model: PreTrainedModel, k: int, progress: OnTable | None = None
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the top `k` tokens after each token, best first, and their probabilities.

    Each token is the whole context, without a beginning-of-sequence token, as in the paper.

    Returns:
        int32 and float32, both `(vocab_size, k)`.
    """
    vocab_size = model_vocab_size(model)
    num_tokens = max(1, min(_MOST_TOKENS, _BATCH_ELEMENTS // vocab_size))
    token_ids = np.empty((vocab_size, k), dtype=np.int32)
    probs = np.empty((vocab_size, k), dtype=np.float32)
    for start in range(0, vocab_size, num_tokens):
        rows = slice(start, min(start + num_tokens, vocab_size))
        contexts = torch.arange(rows.start, rows.stop, device=model.device)[:, None]
        logits = model(input_ids=contexts, use_cache=False).logits[:, -1, :vocab_size]
        top = logits.float().softmax(dim=-1).topk(k, dim=-1)
        token_ids[rows], probs[rows] = top.indices.cpu().numpy(), top.values.cpu().numpy()
        if progress is not None:
            progress("bigrams", rows.stop, vocab_size)
    return token_ids, probs


def fingerprint(model: PreTrainedModel) -> str:
    """Return 32 hexadecimal digits that identify a model's configuration and weights.

    They cover up to 64 evenly spaced values of each parameter: a training step changes them, but
    an edit of a few rows may not.
    """
    without = ("_name_or_path", "architectures", "dtype", "transformers_version")
    config = {k: v for k, v in model.config.to_dict().items() if k not in without}
    digest = hashlib.sha256(f"{_VERSION} {type(model).__name__}".encode())
    digest.update(json.dumps(config, sort_keys=True, default=str).encode())
    for name, parameter in model.named_parameters():
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}".encode())
        values = parameter.detach().reshape(-1)
        sampled = values[:: max(1, -(-len(values) // _MOST_VALUES))].contiguous()
        digest.update(sampled.view(torch.uint8).cpu().numpy().tobytes())
    return digest.hexdigest()[:32]


def _read(path: Path, vocab_size: int, k: int) -> ModelTables | None:
    """Read tables; None if the file is missing, damaged or has other sizes."""
    content = io.BytesIO(read_kept(path, 8 * vocab_size * (k + 1) + _MOST_HEADER_BYTES) or b"")
    try:
        # The archive has checksums, and nothing in it is executed or decompressed.
        if any(part.compress_type for part in zipfile.ZipFile(content).infolist()):
            return None
        with np.load(content) as arrays:
            tables = ModelTables(arrays["bigram"], arrays["bigram_probs"], arrays["unigram"])
    except Exception:  # damaged archives raise errors of many types
        return None
    is_ranking = np.array_equal(np.sort(tables.unigram), np.arange(vocab_size))
    return tables if is_ranking and tables.bigram.shape == (vocab_size, k) else None


def _write(path: Path, tables: ModelTables) -> None:
    content = io.BytesIO()
    arrays: dict[str, Any] = {
        "bigram": tables.bigram.astype(np.int32),
        "bigram_probs": tables.bigram_probs,
        "unigram": tables.unigram.astype(np.int32),
    }
    np.savez(content, **arrays)
    keep(path, content.getvalue())
