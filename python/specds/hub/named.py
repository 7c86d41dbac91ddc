"""Which datastore does a model's folder name as its own?"""

from __future__ import annotations

import json
from pathlib import Path

from specds.hub.names import HubName

_NAMED_BY = {"specds.json": "datastore", "generation_config.json": "specds_datastore"}
_MAX_BYTES = 1 << 20


def named_datastore(model: str | Path) -> str | None:
    """The datastore that a model's folder names: in `specds.json`, or in its generation config.

    Args:
        model: A folder; what is none names nothing.

    Returns:
        ``org/name`` of the hub, or a path within the folder.

    Raises:
        ValueError: What is named is neither.
    """
    for file, key in _NAMED_BY.items():
        path = Path(model) / file
        if not path.is_file() or path.stat().st_size > _MAX_BYTES:
            continue
        content = json.loads(path.read_text(encoding="utf-8"))
        named = content.get(key) if isinstance(content, dict) else None
        if named is None:
            continue
        if not isinstance(named, str):
            raise ValueError(f"{path}: `{key}` is no text")
        within = Path(model, named).resolve()
        if within.exists() and within.is_relative_to(Path(model).resolve()):
            return str(within)
        if HubName.parse(named) is None:
            raise ValueError(
                f"{path}: `{named}` is neither a datastore of the hub nor in this folder"
            )
        return named
    return None
