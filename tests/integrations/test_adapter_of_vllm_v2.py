"""The adapter of vLLM's V2 runner, against a fake of the states of that runner."""

from threading import Event

import pytest

from stub_runner_v2 import StubRunnerV2
from vllm_shapes import TEXT, WHOLE


def test_vllm_v2_receives_tokens_and_sizes():
    runner = StubRunnerV2(**WHOLE)
    speculator = runner.speculator
    begun = dict.fromkeys("abc")
    rows = [("a", TEXT, 1), ("b", [9, 9, 9], 1), ("c", [1, 2], 0)]
    drafts, sizes = runner.step(rows, begun=begun)
    assert drafts == [[3, 1, 2, 3], [9] * 4, [2] * 4]
    assert sizes == [4, 4, 0]
    rows = [("a", [*TEXT, 3, 1], 2)]
    assert runner.step(rows) == ([[2, 3, 1, 2]], [4])
    assert speculator.drafter.stats()["num_opened"] == 2
    assert runner.step(rows, dummy_run=True)[0] == [[1] * 4]
    # vLLM would cut drafts by the probabilities of the step before.
    assert (speculator.draft_token_confidence_probs == 1).all()
    assert speculator.num_failures == 0
    speculator.req_states = None
    assert runner.step(rows) == ([[1] * 4], [0])
    assert speculator.num_failures == 1


LATER = [
    ([3], [1, 2, 3, 1]),
    ([3, 1, 2], [3, 1, 2, 3]),
    ([3, 1, 2, 3, 1], [2, 3, 1, 2]),
    ([9], None),  # the model wrote another token
    ([3, 1, 2, 9], None),
]


@pytest.mark.parametrize(("new", "expected"), LATER)
def test_vllm_v2_verifies_ahead_what_follows_after_the_tokens_of_a_step(new, expected):
    runner = StubRunnerV2(is_async=True, **WHOLE)
    speculator = runner.speculator
    rows = [("a", TEXT, 1), ("b", [40, 41], 1), ("c", [1, 2], 0)]
    assert runner.step(rows, begun=dict.fromkeys("abc"))[0] == [[2] * 4, [41] * 4, [2] * 4]
    assert (speculator.draft_token_confidence_probs[:3] == 0).all()
    speculator.wait()
    rows = [("a", [*TEXT, *new], len(new)), ("b", [40, 41, 42], 1)]
    drafts, sizes = runner.step(rows)
    confidences = speculator.draft_token_confidence_probs[:2]
    assert drafts[0] == (expected or [new[-1]] * 4)
    assert (confidences[0] > 0).tolist() == [expected is not None] * 4
    assert not confidences[1].any()
    assert sizes == [4, 4]
    speculator.wait()
    rows = [("a", [*TEXT, *new, 7], 1)]
    assert runner.step(rows, dummy_run=True)[0] == [[7] * 4]
    assert (speculator.num_failures, speculator.drafter.stats()["num_opened"]) == (0, 2)


def test_vllm_v2_never_waits_for_the_thread_that_drafts():
    runner, is_ready = StubRunnerV2(is_async=True, **WHOLE), Event()
    speculator = runner.speculator
    speculator._worker.submit(is_ready.wait)
    for number in range(3):
        text = [*TEXT, *[3, 1, 2][:number]]
        drafts, _ = runner.step([("a", text, 1)], begun={} if number else {"a": None})
        assert drafts == [[text[-1]] * 4]
    assert speculator.drafter.stats()["num_opened"] == 0
    is_ready.set()
    speculator.wait()
    # The tokens of all steps were read, and the thread drafted once.
    assert runner.step([("a", [*TEXT, 3, 1, 2], 1)])[0] == [[3, 1, 2, 3]]
    speculator.wait()
    stats = speculator.drafter.stats()
    assert (stats["num_opened"], speculator.num_failures) == (1, 0)


def test_vllm_v2_reads_options_of_requests_ahead():
    runner = StubRunnerV2(is_async=True, memory_scope="tenant", **WHOLE)
    drafter = runner.speculator.drafter
    off, ann = {"specds_off": True}, {"specds_tenant": "ann"}
    text = [*range(20, 28)]
    runner.step([("a", text, 1), ("b", TEXT, 1)], begun={"a": ann, "b": off})
    runner.step([("b", [*TEXT, 3], 1)], finished=["a"])
    runner.speculator.wait()
    assert drafter.stats()["num_opened"] == 1
    begun = {"a": ann, "c": {"specds_tenant": "bob"}}
    rows = [("a", [3, *text[:4]], 1), ("c", [3, *text[:4]], 1)]
    runner.step(rows, begun=begun, finished=["b"])
    runner.speculator.wait()
    rows = [(name, [3, *text[:5]], 1) for name in "ac"]
    assert runner.step(rows)[0] == [[25, 26, 27, 24], [24] * 4]
    confidences = runner.speculator.draft_token_confidence_probs
    assert (confidences[:2, 0] > 0).tolist() == [True, False]
    assert runner.speculator.request_options.keys() == {"a", "c"}


def test_vllm_v2_reads_options_of_requests_and_drafts_of_the_scheduler():
    runner = StubRunnerV2(memory_scope="tenant", **WHOLE)
    drafter = runner.speculator.drafter
    off, ann = {"specds_off": True}, {"specds_tenant": "ann"}
    text = [*range(20, 28)]
    runner.step([("a", text, 1), ("b", TEXT, 1)], begun={"a": ann, "b": off})
    assert drafter.stats()["num_opened"] == 1
    # The next request of the tenant has its memory; the one that is off has none.
    runner.step([("b", [*TEXT, 3], 1)], finished=["a"])
    begun = {"a": ann, "c": {"specds_tenant": "bob"}}
    rows = [("a", [3, *text[:4]], 1), ("c", [3, *text[:4]], 1)]
    _, sizes = runner.step(rows, begun=begun, finished=["b"])
    assert sizes == [4, 0]
    # A grammar left two tokens of the draft, of which one was accepted.
    scheduled = {"a": [24, 25, -1]}
    runner.step([("a", [3, *text[:5], 9], 2)], scheduled=scheduled, invalid={"a": 1})
    stats = drafter.stats()
    assert (stats["num_draft_tokens"], stats["num_cut_tokens"]) == (2, 2)
    assert stats["acceptance_histogram"][2] == [0, 1, 0]
    assert runner.speculator.request_options.keys() == {"a", "c"}


def test_vllm_v2_chooses_sizes_by_step_times():
    rows = [("a", TEXT, 1), ("b", [6, *TEXT], 1)]
    assert StubRunnerV2().step(rows, begun=dict.fromkeys("ab"))[1] == [0, 0]


def test_vllm_v2_pads_all_drafts_of_a_step_to_one_size_of_the_schedule():
    schedule = [(1, 6, 4), (7, 7, 2), (8, 8, 0)]
    rows = [("a", [*TEXT, 5], 1), ("b", [6, *TEXT], 1), ("c", [40, 41, 42], 1)]
    for limit, expected in ((None, 4), (2, 2), (0, 0)):
        runner = StubRunnerV2(schedule=schedule, **WHOLE)
        about = {} if limit is None else {"num_speculative_tokens": limit}
        drafts, sizes = runner.step(rows, begun=dict.fromkeys("abc"), about=about)
        assert sizes == [expected] * 3
        if expected:
            assert drafts[2] == [42] * 4  # padded with the last token
            assert drafts[1][:expected] == [3, 1, 2, 3][:expected]
        assert runner.speculator.num_failures == 0


def test_first_drafts_have_the_sizes_of_known_costs_if_passes_were_measured():
    pytest.importorskip("torch")
    from engines.device_clock import STEP_S, TOKEN_COSTS, speedups

    for rows, share in TOKEN_COSTS:
        found = speedups(rows, share * STEP_S, num_steps=30)
        assert found["passes"] > 0.9 * found["known"] > 0.9, (rows, share, found)
