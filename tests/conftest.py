"""What all tests share: no network, and a thread count that fits a small machine."""

import os

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture(scope="session")
def demo_tokenizer():
    from specds.loading import load_tokenizer

    return load_tokenizer("demo")


@pytest.fixture(scope="session")
def tiny_model():
    """The smallest model that ships with the package, with its tokenizer: `(model, tokenizer)`."""
    from specds.loading import load_model

    return load_model("demo-tiny", device="cpu")
