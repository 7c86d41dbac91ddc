"""Which ways to verify a draft are there."""

from specds.verify.batched import BatchedRunner
from specds.verify.fast import FastRunner
from specds.verify.runner import Runner

RUNNERS: dict[str, type[Runner]] = {
    "fast": FastRunner,
    "tree": Runner,
    "batched": BatchedRunner,
}
"""The ways to verify a draft, by name."""

AUTO = "auto"
"""The name of whichever of them is the fastest on a model."""
