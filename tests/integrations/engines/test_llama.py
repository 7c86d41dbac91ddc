"""A real llama-cpp-python on a CPU: run by `make test-llama`, in an environment of its own."""

import numpy as np
import pytest

pytest.importorskip("llama_cpp", exc_type=ImportError)

from engines import workload
from engines.llama import Engine, draft_model
from specds.integrations.llama_cpp import DraftModel

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]


@pytest.mark.parametrize(("k", "least"), [(8, 3.8), (12, 4.1)])
def test_greedy_text_is_the_engine_s_own_and_drafts_are_accepted(prompts, plain, k, least):
    drafting = draft_model(k)
    with Engine(drafting) as engine:
        assert engine.generate(prompts) == plain
        num_steps = engine.num_row_steps
    stats = drafting.drafter.stats()
    assert drafting.num_failures == 0
    assert stats["num_opened"] == len(prompts)
    # A pass for each prompt, and one for each draft but those of texts that had ended.
    assert 0 <= num_steps - len(prompts) - stats["num_row_steps"] <= len(prompts)
    tokens_a_step = workload.tokens_a_step(plain, num_steps)
    print(f"\nk={k}: {tokens_a_step:.2f} tokens a step")
    assert tokens_a_step > least


def test_texts_end_by_tokens_of_drafts_and_at_limits_of_their_own(prompts, plain):
    stop = {13, 30, 200}
    for about in ({"stop": stop}, {"max_tokens": 1}, {"max_tokens": 33}):
        with Engine() as engine:
            expected = engine.generate(prompts, **about)
        with Engine(draft_model()) as engine:
            assert engine.generate(prompts, **about) == expected
    assert plain != expected


def test_texts_that_fill_the_context_are_the_engine_s_own(prompts):
    size = max(map(len, prompts)) + 30
    with Engine(max_length=size) as engine:
        expected = engine.generate(prompts)
    drafting = draft_model(max_length=size)
    with Engine(drafting, max_length=size) as engine:
        assert engine.generate(prompts) == expected
    assert drafting.num_failures == 0


def test_prompts_that_share_beginnings_and_come_again_are_read_from_the_cache(prompts, plain):
    """The engine rolls back tokens, and continues from the middle of a text."""
    asked = [ids for i, ids in enumerate(prompts[:4]) for ids in (ids, ids + plain[i][:9], ids)]
    with Engine() as engine:
        expected = engine.generate(asked, max_tokens=40)
    with Engine(draft_model()) as engine:
        assert engine.generate(asked, max_tokens=40) == expected


@pytest.mark.parametrize("sampling", [{"temp": 0.8, "top_k": 40}, {"temp": 1.0, "top_p": 0.9}])
def test_sampled_text_is_that_of_the_same_seed(prompts, sampling):
    sampling = {"top_k": 0, "seed": 7, "max_tokens": 64, **sampling}
    with Engine() as engine:
        expected = engine.generate(prompts, **sampling)
    with Engine(draft_model()) as engine:
        assert engine.generate(prompts, **sampling) == expected
        assert engine.num_row_steps < sum(map(len, expected))


def test_garbage_and_failures_cost_no_text(prompts, plain, monkeypatch):
    random = np.random.default_rng(0)
    garbage = lambda *_: random.integers(0, 4096, random.integers(0, 9)).astype(np.intc)  # noqa: E731
    with Engine(garbage) as engine:
        assert engine.generate(prompts) == plain

    def fails(*_):
        raise RuntimeError

    monkeypatch.setattr(DraftModel, "timed_draft", fails)
    drafting = draft_model()
    with Engine(drafting) as engine:
        assert engine.generate(prompts) == plain
    assert drafting.num_failures > 1000
