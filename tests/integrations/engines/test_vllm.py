"""The V1 runner of a real vLLM on a CPU: run by `make test-vllm`, in an environment of its own."""

import numpy as np
import pytest

pytest.importorskip("vllm", exc_type=ImportError)

from engines import workload
from engines.vllm import Engine, chains

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]


@pytest.mark.parametrize(("k", "least"), [(8, 3.8), (15, 4.4)])
def test_greedy_text_is_the_engine_s_own_and_drafts_are_accepted(prompts, plain, k, least):
    with Engine(**chains(k)) as engine:
        assert engine.generate(prompts) == plain
        steps, stats = engine.num_row_steps, engine.proposer.drafter.stats()
        assert engine.proposer.num_failures == 0
    assert stats["num_opened"] == len(prompts)
    assert stats["num_row_steps"] == steps - len(prompts)
    tokens_a_step = workload.tokens_a_step(plain, steps)
    print(f"\nk={k}: {tokens_a_step:.2f} tokens a row step, {engine.cpu_seconds:.1f} CPU seconds")
    assert tokens_a_step > least


@pytest.mark.parametrize(
    "about",
    [
        {"max_num_batched_tokens": 64},
        {"num_gpu_blocks_override": 24, "block_size": 32, "max_model_len": 400},
        {"max_num_seqs": 12, "max_model_len": 400},
    ],
    ids=["chunked prefill", "preemption", "near the longest length"],
)
def test_greedy_text_is_the_engine_s_own_where_rows_are_cut_and_moved(prompts, about, preempted):
    with Engine(**about) as engine:
        expected = engine.generate(prompts)
    preempted.clear()
    with Engine(**chains(8), **about) as engine:
        assert engine.generate(prompts) == expected
        assert engine.proposer.num_failures == 0
    assert bool(preempted) == ("num_gpu_blocks_override" in about)


def test_sixty_four_rows_end_by_tokens_of_drafts_at_limits_of_their_own(prompts):
    rows = [[*ids, *ids[: row % 5]] for row in range(6) for ids in prompts][:64]
    sampling = {"stop_token_ids": [13, 30, 200], "max_tokens": 48}
    with Engine(max_num_seqs=64) as engine:
        expected = engine.generate(rows, **sampling)
    with Engine(**chains(8), max_num_seqs=64) as engine:
        assert engine.generate(rows, **sampling) == expected
        assert engine.proposer.drafter.stats()["num_moved"] > 0
        assert engine.proposer.num_failures == 0


def test_garbage_and_failures_cost_no_text(prompts, plain, monkeypatch):
    from specds.integrations.vllm import Proposer

    random = np.random.default_rng(0)

    def garbage(self, sampled, *_, **__):
        return [random.integers(0, 2000, self.max_nodes).tolist() if row else [] for row in sampled]

    def fails(*_, **__):
        raise RuntimeError

    for name, instead in (("propose", garbage), ("begin_draft", fails)):
        with monkeypatch.context() as patch:
            patch.setattr(Proposer, name, instead)
            with Engine(**chains(8)) as engine:
                assert engine.generate(prompts) == plain
        assert workload.tokens_a_step(plain, engine.num_row_steps) < 1.5


def test_a_damaged_snapshot_and_another_tokenizer_s_datastore(tmp_path, prompts, plain):
    (tmp_path / "kept").write_bytes(b"damaged")
    options = {"memory": "shared", "snapshot": str(tmp_path / "kept")}
    with Engine(**chains(8, **options)) as engine:
        assert engine.generate(prompts[:4]) == plain[:4]
    with pytest.raises(Exception, match="xxh3:other, that of the engine's is "):
        Engine(**chains(8, datastore=workload.other_datastore(tmp_path)))


@pytest.fixture
def right_sampling(monkeypatch):
    """Mends vllm-project/vllm#55005: on a CPU, temperatures of drafted places are never written."""
    from vllm.v1.sample import rejection_sampler

    def expand(x, cu_num_tokens, num_tokens, replace_from=0, replace_to=0):
        counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
        expanded = x.repeat_interleave(counts.long())
        return expanded.where(expanded != replace_from, replace_to) if replace_from else expanded

    monkeypatch.setattr(rejection_sampler, "expand_batch_to_tokens", expand)


def test_sampled_tokens_have_the_engine_s_own_distribution(prompts, right_sampling):
    sampling = {"temperature": 0.8, "top_p": 0.95, "max_tokens": 4}
    rows = [prompts[0]] * 1500
    counts = []
    for drafting in ({}, chains(3)):
        with Engine(**drafting, max_num_seqs=64) as engine:
            texts = engine.generate(rows, seed=None, **sampling)
        places = zip(*texts, strict=False)
        counts.append([np.bincount(place, minlength=1 << 15) for place in places])
    for ours, theirs in zip(*counts, strict=True):
        total = ours + theirs
        often = total >= 10
        chi = ((ours - theirs) ** 2 / np.maximum(total, 1))[often].sum()
        freedom = max(int(often.sum()) - 1, 1)
        assert chi < freedom + 5 * (2 * freedom) ** 0.5
