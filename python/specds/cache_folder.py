"""Where is kept what can be computed again: tables of models, costs of steps."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Where tables are kept: ``SPECDS_CACHE``, else ``specds`` in the user's cache folder."""
    own = os.environ.get("SPECDS_CACHE")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "specds"
