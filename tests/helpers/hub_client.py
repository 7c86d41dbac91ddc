"""What the tests of the hub run in a process of its own, where `HF_ENDPOINT` is another."""

from __future__ import annotations

import os
import pickle
import sys
import time


def prepare(endpoint: str, home: str) -> None:
    """Turns a fresh process to a hub; before its client is imported, which reads this once."""
    os.environ.pop("HF_HUB_OFFLINE", None)
    os.environ |= {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": home,
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_PROXY": "127.0.0.1",
    }
    sleep = time.sleep  # clients wait a second before they try again, and more the next time
    time.sleep = lambda seconds: sleep(min(seconds, 0.01))
    for name in ("huggingface_hub", "datasets"):
        if name in sys.modules:
            raise RuntimeError(f"{name} was imported before its endpoint was set")


def read(spec, options=None, token=None):
    """Opens and reads a corpus: its pickle, then the items of each part."""
    from specds.corpora import open_corpus

    os.environ.pop("HF_TOKEN", None)
    if token:
        os.environ["HF_TOKEN"] = token
    corpus = open_corpus(spec, options)
    return pickle.dumps(corpus), [list(part) for part in corpus.parts]


def read_part(pickled, index):
    """Reads one part of a pickled corpus."""
    return list(pickle.loads(pickled).parts[index])
