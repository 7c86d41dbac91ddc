"""Calls of the hub's tests, made in a separate process where `HF_ENDPOINT` is another."""

import os
import pickle
import sys
import time
import traceback
from importlib import import_module


def prepare(endpoint: str, home: str) -> None:
    """Point a fresh process at a hub, before it imports the client: that reads settings once."""
    os.environ.pop("HF_HUB_OFFLINE", None)
    os.environ |= {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": home,
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_XET": "1",  # it would send files to another server
        "NO_PROXY": "127.0.0.1",
    }
    sleep = time.sleep  # clients wait a second before they try again, and more the next time
    time.sleep = lambda seconds: sleep(min(seconds, 0.01))
    for name in ("huggingface_hub", "datasets"):
        if name in sys.modules:
            raise RuntimeError(f"{name} was imported before its endpoint was set")


def log_in(token):
    """Log in with a token; clients treat an empty one as none."""
    os.environ["HF_TOKEN"] = token or ""


def call(function, arguments, options, token=None):
    """Call a function, such as ``specds.hub.pull``, as the owner of a token."""
    log_in(token)
    module, _, name = function.rpartition(".")
    try:
        return getattr(import_module(module), name)(*arguments, **options)
    except Exception as error:
        if not type(error).__module__.startswith(("builtins", "specds")):
            # What a client raises cannot always be read by the other process, which then waits.
            raise RuntimeError(traceback.format_exc()) from None
        raise


def read(spec, options=None, token=None):
    """Open and read a corpus; return its pickle and the items of each part."""
    from specds.corpora import open_corpus

    log_in(token)
    corpus = open_corpus(spec, options)
    return pickle.dumps(corpus), [list(part) for part in corpus.parts]


def read_part(pickled, index):
    return list(pickle.loads(pickled).parts[index])
