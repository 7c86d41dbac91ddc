"""Fixtures of several commands."""

import pytest

from specds import build_datastore

TEXT = "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return a - b\n" * 3


@pytest.fixture(scope="session")
def datastore(tmp_path_factory, demo_tokenizer):
    """A datastore of a small text file, which is next to it as `code.txt`."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "code.txt").write_text(TEXT)
    corpus = str(folder / "code.txt")
    build_datastore(corpus, demo_tokenizer, folder / "code.specds", tokenizer_name="demo")
    return folder / "code.specds"
