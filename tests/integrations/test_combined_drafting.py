"""Combined drafting with a head of vLLM, without vLLM: when the head runs, and what is learned."""

from types import SimpleNamespace

import numpy as np
import pytest

from specds.integrations import adapter
from specds.integrations.vllm_combined import CombinedProposer, HeadChoice
from vllm_shapes import config_of

torch = pytest.importorskip("torch")

K, PASS_S, STEP_S = 4, 1.0, 10.0
RANDOM = np.random.default_rng(0).integers(0, 90, 300).tolist()
LOOP = [1, 2, 3, 4, 5, 6, 7] * 40


class CombinedDecoding:
    """Greedy decoding of a text from its ninth token; the head drafts `num_known` tokens right."""

    _last_draft_probs = None

    def __init__(self, monkeypatch, text, num_known, ranks=1):
        self.text, self.num_known, self.at, self.now = text, num_known, 8, 0.0
        self.num_passes, self.is_last = [], []
        self.model = SimpleNamespace(compute_logits=None)
        self.vllm_config, self.device = config_of(k=K, max_model_len=400), torch.device("cpu")
        self.vllm_config.parallel_config.data_parallel_size = ranks
        monkeypatch.setattr(adapter, "perf_counter", lambda: self.now)
        CombinedProposer(self)

    def prepare_next_token_ids_padded(self, sampled, *_):
        return sampled.amax(1), None

    def propose(self, num_speculative_tokens):
        k = num_speculative_tokens
        self.num_passes.append(k)
        self.now += PASS_S * max(k, 1)
        known = self.text[self.at :][: min(k, self.num_known)]
        return torch.tensor([known + [95] * (k - len(known))], dtype=torch.int64).view(1, k)

    def run(self, num_verified=K):
        """Decode the whole text; the runner verifies `num_verified` of the drafted tokens."""
        request = SimpleNamespace(sampling_params=None, prompt_token_ids=self.text[:7])
        requests, batch = {"a": request}, SimpleNamespace(req_ids=["a"], vocab_size=100)
        new, request.prev_num_draft_len = self.text[7:8], 0
        while self.at < len(self.text) - K - 1:
            sampled = torch.tensor([new + [-1] * (K + 1 - len(new))])
            self.prepare_next_token_ids_padded(sampled, requests, batch, torch.tensor([False]))
            [draft] = self.propose(num_speculative_tokens=K).tolist()
            pairs = enumerate(zip(draft, self.text[self.at :], strict=False))
            right = next((place for place, (a, b) in pairs if a != b), K)
            accepted = min(right, num_verified)
            request.prev_num_draft_len = num_verified
            new = self.text[self.at :][: accepted + 1]
            self.at, self.now = self.at + accepted + 1, self.now + STEP_S
        return self.specds.drafter.stats()


def test_head_is_skipped_where_retrieval_accepts_as_much(monkeypatch):
    decoding = CombinedDecoding(monkeypatch, LOOP, num_known=1)
    stats = decoding.run()
    assert decoding.specds.num_failures == 0
    assert decoding.num_passes[-8:] == [0] * 8
    assert stats["num_accepted_tokens"] > 0.95 * stats["num_draft_tokens"]


def test_head_always_runs_on_text_that_retrieval_does_not_know(monkeypatch):
    decoding = CombinedDecoding(monkeypatch, RANDOM, num_known=K)
    stats = decoding.run()
    assert {*decoding.num_passes} == {K}
    assert stats["num_row_steps"] < len(RANDOM) / (K + 0.5)


def test_head_always_runs_with_data_parallelism(monkeypatch):
    decoding = CombinedDecoding(monkeypatch, LOOP, num_known=1, ranks=2)
    decoding.run()
    assert {*decoding.num_passes} == {K}


def test_head_whose_probabilities_would_be_taken_for_those_of_chains_is_not_wrapped(monkeypatch):
    monkeypatch.delattr(CombinedDecoding, "_last_draft_probs")
    with pytest.raises(AttributeError, match="_last_draft_probs"):
        CombinedDecoding(monkeypatch, LOOP, num_known=1)


def test_statistics_with_a_head_include_only_verified_tokens(monkeypatch):
    stats = CombinedDecoding(monkeypatch, LOOP, num_known=1).run(num_verified=2)
    assert stats["num_draft_tokens"] == 2 * stats["num_drafts"]
    assert stats["num_cut_tokens"] > 0


def test_choice_follows_times_and_tries_the_head_again():
    choice, expected = HeadChoice(K), np.array([2, 2])

    def skips(added, rest, head):
        for _ in range(100):
            choice.observe(2, 2, 2 + added)
            for part, seconds in (("rest", rest), ("head", head), ("skipped", head / K)):
                choice.observe_time(part, seconds)
        return choice.skips(expected)

    assert not choice.skips(expected)  # nothing is known yet
    assert not skips(added=1, rest=10, head=1)
    assert skips(added=1, rest=1, head=4)
    assert sum(choice.skips(expected) for _ in range(66)) == 64
    assert not choice.skips(np.array([2, 3]))  # no row like the second was seen
