"""Which tokens did a model once write, and after which prompt?"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from specds.corpora.files import decompressed, line_rows, readable
from specds.models.tokenization import Tokenizer, vocab_size

ALL = "all"
"""The group of all transcripts together, where there are several files of them."""


class TranscriptError(ValueError):
    """A row of transcripts cannot be replayed; the message names its file and line."""


@dataclass(frozen=True)
class Transcript:
    """An answer that a model once gave.

    Attributes:
        source: The group of the report that it belongs to: the row's `workload`, by default the
            name of its file without suffixes.
        prompt_ids: Shape `(n,)`, n >= 1.
        completion_ids: Shape `(n,)`, n >= 1; text ends in the end-of-sequence token.
        group: Requests of one group are samples of one prompt, turns of one task, ...; by default
            those of the same prompt, or as a drafter finds them.
        predicted_ids: What the caller expected of the answer, shape `(n,)`; None if nothing.
        suggested: For each token of the completion, how many tokens a recorded drafter had right
            there, and how many it drafted; empty where none was recorded.
    """

    source: str
    prompt_ids: np.ndarray
    completion_ids: np.ndarray
    group: str | None = None
    predicted_ids: np.ndarray | None = None
    suggested: Sequence[tuple[int, int]] = ()


def read_transcripts(
    path: Path, tokenizer: Tokenizer, vocab_size: int, limit: int | None = None
) -> list[Transcript]:
    """Reads a JSONL file, packed by gzip or zstd or not, of recorded answers.

    A row holds `prompt` and `completion` as text, or `prompt_ids` and `completion_ids` as the token
    ids that were recorded; where it has both, the ids are taken. It may hold `predicted_output`, or
    its ids, and `workload`, `group` and `suggested`: see `Transcript`. Ids are below `vocab_size`.
    """
    source, transcripts = _name(path), []
    with readable(str(path)), path.open("rb") as file:
        rows = line_rows(decompressed(file, path.name), lambda: 0)
        for number, row, _ in islice(rows, limit):
            try:
                transcripts.append(_transcript(source, row, tokenizer, vocab_size))
            except ValueError as error:
                raise TranscriptError(f"{path}:{number}: {error}") from error
    if not transcripts:
        raise TranscriptError(f"{path} holds no transcripts: give one JSON object a line")
    return transcripts


def read_files(
    files: Sequence[Path], tokenizer: Tokenizer, limit: int | None = None
) -> list[Transcript]:
    size = vocab_size(tokenizer)
    read = [each for path in files for each in read_transcripts(path, tokenizer, size, limit)]
    groups = {transcript.source for transcript in read}
    if len(set(map(_name, files))) < len(files) or (len(groups) > 1 and ALL in groups):
        raise ValueError(
            f"files of transcripts are told apart by their names, `{ALL}` is all of them together: "
            "rename those that share a name"
        )
    return read


def _name(path: Path) -> str:
    return path.name.split(".jsonl")[0].split(".ndjson")[0]


def _transcript(source: str, row: Any, tokenizer: Tokenizer, vocab_size: int) -> Transcript:
    if isinstance(row, ValueError):
        raise row
    if not isinstance(row, dict):
        raise ValueError(f"not a JSON object, but {type(row).__name__}")
    prompt, completion, predicted = (_ids(row, name, tokenizer, vocab_size) for name in _TEXTS)
    return Transcript(
        _text(row, "workload") or source,
        prompt,
        completion,
        _text(row, "group"),
        predicted if "predicted_output" in row or "predicted_output_ids" in row else None,
        _suggested(row.get("suggested", []), len(completion)),
    )


_TEXTS = ("prompt", "completion", "predicted_output")


def _ids(row: dict[str, Any], name: str, tokenizer: Tokenizer, vocab_size: int) -> np.ndarray:
    """The recorded ids where the row has them, else those of the text."""
    field, kind = (f"{name}_ids", list) if row.get(f"{name}_ids") is not None else (name, str)
    value: Any = row.get(field)
    if value is None and name != "predicted_output":
        raise ValueError(f"neither `{name}` nor `{name}_ids`: a transcript needs one")
    if not isinstance(value, (kind, type(None))):
        wanted = "a list of token ids" if kind is list else "a text"
        raise ValueError(f"`{field}` must be {wanted}, not {type(value).__name__}")
    if not value and name != "predicted_output":
        raise ValueError(f"`{field}` is empty: leave the row out")
    ids = value or []
    if isinstance(value, str):
        _require_characters(field, value)
        ids = tokenizer.encode(value, add_special_tokens=name == "prompt")
        # The model stopped there, and had to be right about that as well.
        if name == "completion" and isinstance(tokenizer.eos_token_id, int):
            ids = [*ids, tokenizer.eos_token_id]
    if value and not ids:
        raise ValueError(f"`{field}` holds no token: leave the row out")
    for position, token in enumerate(ids if kind is list else ()):
        if type(token) is not int or not 0 <= token < vocab_size:
            raise ValueError(
                f"`{field}` holds {token!r} at position {position}: ids are in 0..{vocab_size}, "
                "is it the tokenizer of the model that wrote them?"
            )
    return np.array(ids, dtype=np.uint32)


def _text(row: dict[str, Any], field: str) -> str | None:
    value = row.get(field)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"`{field}` must be a text, not {type(value).__name__}")
    _require_characters(field, value or "")
    return value


def _require_characters(field: str, text: str) -> None:
    """Refuses the halves of characters that JSON can hold: no tokenizer takes them."""
    for position, character in enumerate(text):
        if "\ud800" <= character <= "\udfff":
            raise ValueError(
                f"`{field}` holds half a character, {character!r}, at position {position}: was the "
                "text cut inside a surrogate pair?"
            )


_MOST_SUGGESTED = 1024


def _suggested(value: Any, num_tokens: int) -> list[tuple[int, int]]:
    # The end-of-sequence token that is added to a text was recorded by nobody.
    if not isinstance(value, list) or len(value) not in (0, num_tokens - 1, num_tokens):
        raise ValueError(f"`suggested` must be a list of {num_tokens} pairs, one for each token")
    for position, pair in enumerate(value):
        match pair:
            case [int(right), int(length)] if (
                0 <= right <= min(length, num_tokens - position) and length <= _MOST_SUGGESTED
            ):
                continue
        raise ValueError(
            f"`suggested` holds {pair!r} at position {position}, not how many tokens were right of "
            f"how many drafted there, at most {_MOST_SUGGESTED}"
        )
    return [(right, length) for right, length in value]
