"""Pages of HTML that load nothing else."""

from __future__ import annotations

import re
from importlib.resources import files


def filled(page: str, **values: str) -> str:
    """A page with the values and the assets that it names in double braces."""

    def value_of(found: re.Match[str]) -> str:
        name = found[1]
        return values[name] if name in values else asset(name)

    return re.sub(r"\{\{([\w.]+)\}\}", value_of, page)


def asset(name: str) -> str:
    return (files("specds.bench") / "assets" / name).read_text(encoding="utf-8")
