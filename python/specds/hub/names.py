"""Names of datastores on the hub, and the datastore that a model's folder names."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path, PurePath

# A path has lost one of the two slashes of `hf://`.
_NAME = re.compile(
    r"(?P<scheme>hf:/{1,2}(datasets/)?)?(?P<repository>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>\w[\w./-]*))?",
    re.ASCII,
)


@dataclass(frozen=True)
class HubName:
    """A datastore on the hub: ``org/name``, and a branch, a tag or a commit."""

    repository: str
    revision: str = "main"

    def __str__(self) -> str:
        return self.repository + ("" if self.revision == "main" else f"@{self.revision}")

    @classmethod
    def parse(cls, path: str | PathLike[str]) -> HubName | None:
        """Parse ``org/name`` or ``hf://org/name@revision``; None if it can only be a path."""
        text = path if isinstance(path, str) else PurePath(path).as_posix()
        found = _NAME.fullmatch(text)
        if found is not None:
            return cls(found["repository"], found["revision"] or "main")
        if text.startswith("hf:"):
            raise ValueError(f"`{text}` is not a name on the hub: try hf://org/name@revision")
        return None

    @property
    def page(self) -> str:
        return f"https://huggingface.co/datasets/{self.repository}"


_MAX_BYTES = 1 << 20
_MAX_NAME = 200


def named_datastore(model: str | Path) -> str | None:
    """Return the datastore that a model's folder names in `specds.json`, or None.

    Raises:
        ValueError: It is neither a name ``org/name`` nor a path within the folder.
    """
    path = Path(model) / "specds.json"
    if not path.is_file() or path.stat().st_size > _MAX_BYTES:
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise ValueError(f"{path} is not JSON: correct it or remove it") from None
    named = content.get("datastore") if isinstance(content, dict) else None
    if named is None:
        return None
    if not isinstance(named, str):
        raise ValueError(f"{path}: `datastore` is not a string")
    with suppress(OSError, RuntimeError, ValueError):  # too long, a link to itself, a null byte
        within = Path(model, named).resolve()
        if within.exists() and within.is_relative_to(Path(model).resolve()):
            return str(within)
    if len(named) > _MAX_NAME or HubName.parse(named) is None:
        named = named if len(named) <= _MAX_NAME else f"{named[:_MAX_NAME]}..."
        raise ValueError(f"{path}: `{named}` is neither a datastore of the hub nor in this folder")
    return named
