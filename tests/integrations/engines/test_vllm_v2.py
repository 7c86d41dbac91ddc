"""The V2 runner of a real vLLM on a CPU, its kernels by Triton's interpreter: `make test-vllm`."""

import os
from importlib.util import find_spec
from unittest.mock import MagicMock

import pytest

if find_spec("vllm") is None:
    pytest.skip("needs vLLM", allow_module_level=True)
os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"  # before vLLM and Triton are imported

from engines.vllm import Engine, chains

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module", autouse=True)
def plug_in():
    from specds.integrations import vllm_v2

    vllm_v2.register()


def texts(engine, prompts):
    return engine.generate(prompts[:5], max_tokens=24)


@pytest.mark.parametrize(
    "about",
    [
        {"max_num_seqs": 2},
        {"max_num_batched_tokens": 64},
        {"num_gpu_blocks_override": 14, "block_size": 32, "max_model_len": 400},
    ],
    ids=["rows that move", "chunked prefill", "preemption"],
)
def test_greedy_text_is_the_engine_s_own_and_drafts_are_accepted(prompts, about, preempted):
    with Engine(**about) as engine:
        expected = texts(engine, prompts)
    preempted.clear()
    with Engine(**chains(4), **about) as engine:
        assert texts(engine, prompts) == expected
        stats = engine.proposer.drafter.stats()
        assert engine.proposer.num_failures == stats["num_refused"] == 0
        assert stats["num_accepted_tokens"] > 40
    assert bool(preempted) == ("num_gpu_blocks_override" in about)


def test_adaptive_verification_expects_as_many_tokens_as_are_accepted(prompts, monkeypatch):
    import torch
    from vllm.v1.worker.gpu.spec_decode import adaptive_verification as adaptive

    with Engine(**chains(4), max_num_seqs=2) as engine:
        # vLLM has put its own in their place.
        for name in ("Stream", "Event", "current_stream"):
            monkeypatch.setattr(torch.cuda, name, MagicMock())
        monkeypatch.setattr(adaptive, "stream", MagicMock())
        ours, expected = engine.proposer, []
        starts = torch.zeros(3, dtype=torch.int32)
        manager = adaptive.AdaptiveVerificationManager(ours.req_states, starts, 1, 1000)
        propose = ours.propose

        def proposed(batch, *about, **more):
            drafts = propose(batch, *about, **more)
            manager.record_confidences(ours.draft_token_confidence_probs, batch)
            likely = manager._confidence_probs[batch.idx_mapping].cumprod(dim=1)
            expected.append(float(likely.sum()))
            return drafts

        ours.propose = proposed
        texts(engine, prompts)
        accepted = ours.drafter.stats()["num_accepted_tokens"]
    assert accepted / 1.5 < sum(expected) < accepted * 1.5


def test_failures_cost_no_text(prompts, monkeypatch):
    from specds.integrations.vllm_v2 import ChainSpeculator

    with Engine() as engine:
        expected = texts(engine, prompts[:2])
    monkeypatch.setattr(ChainSpeculator, "_news", None)
    with Engine(**chains(4)) as engine:
        assert texts(engine, prompts[:2]) == expected
        assert engine.proposer.num_failures > 10
