"""What the tests of memories share."""

import pytest


@pytest.fixture
def path(tmp_path):
    """The file of a memory, which is not there yet."""
    return tmp_path / "memory"
