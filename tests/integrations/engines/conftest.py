"""What the tests of all engines share."""

from importlib import import_module

import pytest


@pytest.fixture(scope="module")
def prompts():
    from engines import workload

    return workload.prompts()


@pytest.fixture(scope="module")
def plain(request, prompts):
    """The texts of the engine without drafts."""
    name = request.module.__name__.rpartition("test_")[2]
    with import_module(f"engines.{name}").Engine() as engine:
        return engine.generate(prompts)
