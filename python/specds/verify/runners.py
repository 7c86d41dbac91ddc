"""Which ways to verify a draft are there."""

from __future__ import annotations

from specds.verify.generic import Runner
from specds.verify.static import StaticRunner

RUNNERS: dict[str, type[Runner]] = {"fast": StaticRunner, "tree": Runner}
"""The ways to verify a draft, by name."""

AUTO = "auto"
"""The name of whichever of them is the fastest on a model."""


def runner_class(verification: str | type[Runner]) -> type[Runner]:
    """What verifies, by its name or itself."""
    return RUNNERS[verification] if isinstance(verification, str) else verification


def name_of(verification: str | type[Runner]) -> str:
    """What statistics and messages call it."""
    return verification if isinstance(verification, str) else verification.__name__
