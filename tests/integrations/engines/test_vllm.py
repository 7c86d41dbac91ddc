"""The V1 runner of a real vLLM on a CPU: run by `make test-vllm`, in an environment of its own."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

pytest.importorskip("vllm", exc_type=ImportError)

from vllm import SamplingParams

from engine_grammars import check_grammars, structured_texts
from engines import workload
from engines.vllm import Engine, chains, eagle
from specds.integrations.adapter import Adapter
from specds.integrations.vllm import CHANGES, VllmAdapter, patch_worker
from vllm_shapes import config_of

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    """A random one; our plug-in joins the proposers that run it."""
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    from specds.integrations.vllm_combined import wrap_proposers

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SpecDecodeBaseProposer, "load_model", SpecDecodeBaseProposer.load_model)
        wrap_proposers()
        yield workload.eagle_head(tmp_path_factory.mktemp("head"))


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
def test_greedy_text_is_the_engine_s_own_where_rows_are_cut_and_moved(
    prompts, about, preempted, head
):
    with Engine(**about) as engine:
        expected = engine.generate(prompts)
    for drafting in (chains(8), {**chains(8), **eagle(head, 5)}):
        preempted.clear()
        with Engine(**drafting, **about) as engine:
            assert engine.generate(prompts) == expected
            adapter = getattr(engine.proposer, "specds", engine.proposer)
        assert adapter.num_failures == 0
        assert adapter.drafter.stats()["num_accepted_tokens"] > 400
        assert bool(preempted) == ("num_gpu_blocks_override" in about)


@pytest.mark.parametrize("is_async", [False, True])
def test_tokens_of_a_vllm_head_are_suggested(prompts, plain, head, is_async):
    with Engine(**{**chains(5), **eagle(head, 5)}, async_scheduling=is_async) as engine:
        adapter = engine.proposer.specds
        adapter.drafter = drafter = MagicMock(wraps=adapter.drafter)
        assert engine.generate(prompts) == plain
    # Steps that do not skip the random head draft twice.
    assert 0 < drafter.suggest.call_count < drafter.draft_chains.call_count / 2
    for token_ids, probs in (call.args for call in drafter.suggest.call_args_list):
        assert token_ids.shape == probs.shape == (len(token_ids), 5)
        assert ((probs > 0) & (probs < 1)).all()
    stats = drafter.stats()
    assert (adapter.num_failures, stats["num_opened"]) == (0, len(prompts))
    # A random head costs little of what is drafted without it.
    assert workload.tokens_a_step(plain, stats["num_row_steps"] + len(prompts)) > 3


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

    for name, instead in (("propose", garbage), ("timed_draft", fails)):
        with monkeypatch.context() as patch:
            patch.setattr(Proposer, name, instead)
            with Engine(**chains(8)) as engine:
                assert engine.generate(prompts) == plain
        assert workload.tokens_a_step(plain, engine.num_row_steps) < 1.5


@pytest.mark.parametrize("backend", ["xgrammar", "guidance"])
def test_drafts_hold_what_grammars_force_and_nothing_forbidden(prompts, backend, monkeypatch):
    check_grammars(monkeypatch, Engine, chains(8), prompts, backend)


def test_forbidden_drafts_are_cut_and_not_counted(prompts, monkeypatch):
    """Without the constraints, whose tests would show nothing otherwise."""
    with Engine() as engine:
        expected = structured_texts(engine, prompts)
    monkeypatch.setattr(Adapter, "choose_allowed", lambda *_: None)
    with Engine(**chains(8)) as engine:
        assert structured_texts(engine, prompts) == expected
        assert engine.proposer.drafter.stats()["num_cut_tokens"] > 20


def test_datastore_of_another_tokenizer_is_rejected(tmp_path):
    with pytest.raises(Exception, match="xxh3:other, that of the engine is "):
        Engine(**chains(8, datastore=workload.other_datastore(tmp_path)))


@pytest.mark.parametrize("cut", [{"top_p": 0.95}, {"top_k": 20}])
def test_sampled_tokens_have_the_engine_s_own_distribution(prompts, cut):
    sampling = {"temperature": 0.8, "max_tokens": 4, **cut}
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


def test_vllm_registry_has_draft_metrics(prompts):
    from prometheus_client import REGISTRY

    def value(name, **labels):
        return REGISTRY.get_sample_value(f"specds:{name}", labels) or 0

    before = value("draft_tokens_total"), value("accepted_tokens_total", source="context")
    with Engine(**chains(8, memory_scope="shared")) as engine:
        engine.generate(prompts[:4])
        stats = engine.proposer.drafter.stats()
    drafted, accepted = stats["num_draft_tokens"], stats["num_accepted_by_source"]["context"]
    assert drafted > accepted > 0
    assert value("draft_tokens_total") - before[0] == drafted
    assert value("accepted_tokens_total", source="context") - before[1] == accepted
    assert value("memory_bytes") == stats["num_memory_bytes"] > 0
    assert value("draft_seconds_total") > 0


def test_only_rank_zero_drafts(prompts, plain, monkeypatch):
    from vllm import LLM

    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    about = {"model": workload.model_path(), "dtype": "float32", "enforce_eager": True}
    about |= {"max_model_len": 1024, "tensor_parallel_size": 2, "seed": 0}
    llm = LLM(**about, **chains(8, memory_scope="shared"))
    params = {"temperature": 0, "max_tokens": 32, "ignore_eos": True}
    given = [{"prompt_token_ids": ids} for ids in prompts[:2]]
    outputs = llm.generate(given, SamplingParams(**params), use_tqdm=False)
    stats = llm.collective_rpc(drafter_stats)
    texts = [list(output.outputs[0].token_ids) for output in outputs]
    assert texts == [text[:32] for text in plain[:2]]
    assert stats[0]["num_accepted_tokens"] > 16
    assert stats[1]["num_opened"] == 0


def test_new_weights_keep_the_request_cache(prompts, plain):
    """By the calls of TRL's colocated mode, and of `collective_rpc("reload_weights")`."""
    with Engine(**chains(8, memory_scope="shared")) as engine:
        adapter, model = engine.proposer, engine.runner.model
        adapter.drafter = drafter = MagicMock(wraps=adapter.drafter)
        weights = {name: each.clone() for name, each in model.named_parameters()}
        assert engine.generate(prompts) == plain
        num_steps, num_bytes = engine.num_row_steps, drafter.stats()["num_memory_bytes"]
        for number, scale in enumerate((0.5, 1.0), start=1):
            name = "lm_head.weight" if "lm_head.weight" in weights else "model.embed_tokens.weight"
            model.load_weights([(name, scale * weights[name])])
            assert engine.llm.reset_prefix_cache()
            engine.generate(prompts[:1], max_tokens=4)
            assert drafter.reset_acceptance.call_count == number
        assert engine.generate(prompts) == plain
        # All texts are in the cache.
        assert engine.num_row_steps < 0.8 * num_steps
        assert drafter.stats()["num_memory_bytes"] >= num_bytes
        engine.llm.collective_rpc("reload_weights")
        assert engine.generate(prompts) == plain
        assert drafter.reset_acceptance.call_count == 3
        assert adapter.num_failures == 0


@pytest.mark.parametrize("runner", ["drafter", "speculator", "specds"])
@pytest.mark.parametrize("change", CHANGES)
def test_worker_reports_changes_that_load_no_weights(change, runner, monkeypatch):
    """Sleep and weight transfer need a GPU, so the worker's own methods do nothing here."""
    from vllm.v1.worker.gpu_worker import Worker

    assert callable(getattr(Worker, change))
    monkeypatch.setattr(Worker, change, lambda self: None)
    patch_worker()
    adapter = VllmAdapter(config_of())
    held = {"drafter": SimpleNamespace(specds=adapter)} if runner == "specds" else {runner: adapter}
    worker = object.__new__(Worker)
    worker.model_runner = SimpleNamespace(**held)
    getattr(worker, change)()
    adapter.drafter = drafter = MagicMock(wraps=adapter.drafter)
    adapter.sync([[1, 2]], ["a"])
    assert drafter.reset_acceptance.called


def test_passes_are_measured_at_the_start_and_costs_begin_with_them(prompts, monkeypatch):
    logged = MagicMock()
    monkeypatch.setattr(VllmAdapter, "log", logged)
    options = {"step_cost": "measured"}
    with Engine(**chains(8, **options), max_num_seqs=3) as engine:
        assert engine.proposer.measures
        engine.generate(prompts[:3], max_tokens=48)
        assert engine.proposer.drafter.stats()["num_accepted_tokens"] > 20
    [line] = [call.args[1] for call in logged.info.call_args_list if "ms of passes" in call.args[0]]
    times = {int(size): float(ms) for size, ms in (part.split(": ") for part in line.split(", "))}
    assert list(times) == [1, 2, 3, 4, 6, 8, 12, 16, 24]  # at most three rows of nine tokens
    assert 0 < times[1] < times[24]
    with Engine(**chains(8)) as engine:
        assert not engine.proposer.measures


def drafter_stats(worker):
    return worker.model_runner.drafter.drafter.stats()
