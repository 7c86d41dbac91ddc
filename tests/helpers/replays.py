"""What tests of replays are made of."""

import numpy as np
from hypothesis import HealthCheck, settings

from datastores import build
from specds.bench.transcripts import Transcript

VOCAB_SIZE, SEPARATOR = 8, 7

# Benchmarks run on machines that do other things beside, and stall.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def transcript(prompt, completion, source="a"):
    return Transcript(source, np.array(prompt), np.array(completion))


def build_tiny(path):
    """A datastore of four documents of a hundred tokens below 4."""
    texts = np.random.default_rng(5).integers(4, size=(4, 100)).tolist()
    return build(path, texts, vocab_size=VOCAB_SIZE, separator=SEPARATOR)
