"""Fixtures of the tests of memories."""

import pytest


@pytest.fixture
def path(tmp_path):
    """The path of a memory file, which does not exist."""
    return tmp_path / "memory"
