"""The adapter of vLLM's V2 runner, against a fake of the states of that runner."""

from stub_runner_v2 import StubRunnerV2
from vllm_shapes import TEXT, WHOLE


def test_vllm_v2_receives_tokens_sizes_and_probabilities():
    runner = StubRunnerV2(is_async=True, **WHOLE)
    speculator = runner.speculator
    confidences = speculator.draft_token_confidence_probs
    begun = dict.fromkeys("abc")
    rows = [("a", TEXT, 1), ("b", [9, 9, 9], 1), ("c", [1, 2], 0)]
    drafts, sizes = runner.step(rows, begun=begun)
    assert drafts == [[3, 1, 2, 3], [9] * 4, [2] * 4]
    assert sizes == [4, 4, 0]
    assert (confidences[:3, 0] > 0).tolist() == [True, True, False]
    rows = [("a", [*TEXT, 3, 1], 2)]
    assert runner.step(rows) == ([[2, 3, 1, 2]], [4])
    assert speculator.drafter.stats()["num_opened"] == 2
    assert runner.step(rows, dummy_run=True)[0] == [[1] * 4]
    assert not confidences[0].any()
    assert speculator.num_failures == 0
    speculator.req_states = None
    assert runner.step(rows) == ([[1] * 4], [0])
    assert speculator.num_failures == 1


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


def test_vllm_v2_chooses_sizes_by_step_times_unless_it_schedules_ahead():
    rows = [("a", TEXT, 1), ("b", [6, *TEXT], 1)]
    assert StubRunnerV2().step(rows, begun=dict.fromkeys("ab"))[1] == [0, 0]
    assert StubRunnerV2(is_async=True).step(rows, begun=dict.fromkeys("ab"))[1] == [4, 4]


def test_vllm_v2_verifies_all_drafts_whose_sizes_are_ours():
    runner = StubRunnerV2(**WHOLE)
    rows = [("a", TEXT, 1), ("b", [9, 9, 9], 1), ("c", [1, 2], 0)]
    assert runner.step(rows, begun=dict.fromkeys("abc"))[1] == [4, 4, 0]
    assert (runner.speculator.draft_token_confidence_probs[:3] == 1).all()


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
