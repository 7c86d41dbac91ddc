"""Transcripts: recorded answers of models, with their prompts."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from specds.corpora.files import line_rows, readable
from specds.corpora.rendering import Template, render_with
from specds.corpora.requests import conversation_of
from specds.corpora.unpacking import decompressed
from specds.models.tokenization import Tokenizer, vocab_size

ALL = "all"
"""Name of the row of all transcripts together, where there are several files."""


class TranscriptError(ValueError):
    """A row of transcripts cannot be replayed; the message names its file and line."""


@dataclass(frozen=True)
class Transcript:
    """Recorded answer of a model.

    Attributes:
        source: Its set in the report: the row's `workload`, by default the name of its file without
            suffixes.
        prompt_ids: Shape `(n,)`, n >= 1.
        completion_ids: Shape `(n,)`, n >= 1; text ends in the end-of-sequence token.
        group: Name of a request group, such as samples of one prompt or turns of one task; by
            default requests of the same prompt, or the groups that a drafter finds.
        predicted_ids: Predicted output, shape `(n,)`, or None.
        suggested: Accepted and drafted tokens of a recorded drafter at each token of the
            completion; empty without one.
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
    """Read a JSONL file of recorded answers, plain or compressed by gzip or zstd.

    A row has `prompt` and `completion` as text, or `prompt_ids` and `completion_ids`, which take
    precedence, or a conversation whose last message is the answer (`specds build` reads the same
    formats). It may have `predicted_output`, or its ids, and `workload`, `group` and `suggested`:
    see `Transcript`. Ids are below `vocab_size`.
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
        raise TranscriptError(f"{path} has no transcripts: write one JSON object per line")
    return transcripts


def read_files(
    files: Sequence[Path], tokenizer: Tokenizer, limit: int | None = None
) -> list[Transcript]:
    size = vocab_size(tokenizer)
    read = [each for path in files for each in read_transcripts(path, tokenizer, size, limit)]
    groups = {transcript.source for transcript in read}
    if len(set(map(_name, files))) < len(files) or (len(groups) > 1 and ALL in groups):
        raise ValueError(
            f"files of transcripts need distinct names other than `{ALL}`: rename those that share "
            "one"
        )
    return read


def _name(path: Path) -> str:
    return path.name.split(".jsonl")[0].split(".ndjson")[0]


def _transcript(source: str, row: Any, tokenizer: Tokenizer, vocab_size: int) -> Transcript:
    if isinstance(row, ValueError):
        raise row
    if not isinstance(row, dict):
        raise ValueError(f"not a JSON object, but {type(row).__name__}")
    if "prompt" not in row and "prompt_ids" not in row:
        row = row | _turn(row, tokenizer)
    prompt, completion, predicted = (_ids(row, name, tokenizer, vocab_size) for name in _TEXTS)
    return Transcript(
        _text(row, "workload") or source,
        prompt,
        completion,
        _text(row, "group"),
        predicted if "predicted_output" in row or "predicted_output_ids" in row else None,
        _suggested(row.get("suggested", []), len(completion)),
    )


def _turn(row: dict[str, Any], tokenizer: Tokenizer) -> dict[str, str]:
    """Return the prompt and the completion of a conversation, without the end of its last turn."""
    talk, render = conversation_of(row), render_with(tokenizer)
    if talk is None:
        return {}
    if not isinstance(render, Template):
        raise ValueError("a conversation needs the tokenizer of a model with a chat template")
    if not talk.messages or talk.messages[-1]["role"] != "assistant":
        raise ValueError("the last message of a conversation must be the assistant's")
    turn = render.turn(talk.messages, talk.tools)
    if turn is None:
        raise ValueError("the chat template does not write the last message after its prompt")
    prompt, completion = turn
    end = tokenizer.eos_token_id
    if isinstance(end, int):
        completion = completion.split(str(tokenizer.decode([end])))[0]
    return {"prompt": prompt, "completion": completion}


_TEXTS = ("prompt", "completion", "predicted_output")


def _ids(row: dict[str, Any], name: str, tokenizer: Tokenizer, vocab_size: int) -> np.ndarray:
    """Return the recorded ids if the row has them, else those of its text."""
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
        # The model stopped there, and a draft can predict that too.
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
    """Reject lone surrogates, which JSON can hold and no tokenizer accepts."""
    for position, character in enumerate(text):
        if "\ud800" <= character <= "\udfff":
            raise ValueError(
                f"`{field}` holds half a character, {character!r}, at position {position}: was the "
                "text cut inside a surrogate pair?"
            )


_MOST_SUGGESTED = 1024


def _suggested(value: Any, num_tokens: int) -> list[tuple[int, int]]:
    # A recorder does not see the end-of-sequence token that is added to a text.
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
