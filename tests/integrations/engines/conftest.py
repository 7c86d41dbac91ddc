"""Fixtures of the tests of all engines."""

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


@pytest.fixture
def preempted(monkeypatch):
    """Record the requests that vLLM preempts."""
    from vllm.v1.core.sched.scheduler import Scheduler

    requests, preempt = [], Scheduler._preempt_request

    def noted(scheduler, request, *arguments, **more):
        requests.append(request.request_id)
        return preempt(scheduler, request, *arguments, **more)

    monkeypatch.setattr(Scheduler, "_preempt_request", noted)
    return requests
