"""The adapter of vLLM's V2 runner, against a fake of the states of that runner."""

from types import SimpleNamespace

import numpy as np
import pytest

from specds.integrations import vllm_v2
from vllm_shapes import TEXT, WHOLE, config_of, step_of


class StubRunnerV2:
    """The states of vLLM's V2 runner, on a CPU."""

    def __init__(self, **about):
        self.torch = pytest.importorskip("torch")
        self.texts = self.torch.full((8, 32), 7, dtype=self.torch.int32)
        self.lengths = self.torch.zeros(8, dtype=self.torch.int32)
        on_gpu = {"all_token_ids": self.texts, "total_len": self.lengths}
        states = {name: SimpleNamespace(gpu=part) for name, part in on_gpu.items()}
        self.states = SimpleNamespace(**states, req_id_to_index={"a": 5, "b": 2, "c": 0})
        self.speculator = vllm_v2.ChainSpeculator(
            config_of(**about), self.torch.device("cpu"), self.states
        )

    def step(self, rows, dummy_run=False, **scheduler):
        """Draft for rows of a name, a text and a number of sampled tokens.

        Returns the drafts of the model's input, and those that the scheduler gets.
        """
        torch = self.torch
        names, given, sampled = zip(*rows, strict=True)
        places = torch.tensor([self.states.req_id_to_index[name] for name in names])
        for place, text in zip(places, given, strict=True):
            self.texts[place, : len(text)] = torch.tensor(text, dtype=torch.int32)
            self.lengths[place] = len(text)
        batch = SimpleNamespace(
            num_reqs=len(rows),
            req_ids=names,
            idx_mapping=places,
            prefill_len_np=np.array([len(text) for text in given]),
        )
        last = torch.zeros(8, 1, dtype=torch.int64)
        last[places, 0] = torch.tensor([text[-1] for text in given])
        self.speculator.begin_step(step_of(**scheduler))
        drafts = self.speculator.propose(
            batch, None, {}, None, None, torch.tensor(sampled), None, last, dummy_run=dummy_run
        ).tolist()
        taken = SimpleNamespace(req_ids=names, draft_token_ids=[[-1] * 4 for _ in names])
        return drafts, [len(row) for row in self.speculator.cut(taken).draft_token_ids]


def test_vllm_v2_receives_tokens_sizes_and_probabilities():
    runner = StubRunnerV2(**WHOLE)
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
