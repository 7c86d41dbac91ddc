"""Figures with their thresholds, and the machine."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Figure:
    name: str
    value: float | None
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None
    note: str = ""

    @property
    def bar(self) -> str:
        """Describe the threshold; empty if there is none."""
        if self.at_most is not None:
            return f"at most {self.at_most:g}"
        return "" if self.at_least is None else f"at least {self.at_least:g}"

    @property
    def met(self) -> bool | None:
        """Return whether the threshold is met; None without a threshold or a value."""
        if self.value is None or not self.bar:
            return None
        if self.at_most is not None and self.value > self.at_most:
            return False
        return self.at_least is None or self.value >= self.at_least

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"met": self.met}


def machine() -> dict[str, Any]:
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }
