"""The V2 runner of a real vLLM on a CPU, its kernels by Triton's interpreter: `make test-vllm`."""

import json
import os
from importlib.util import find_spec
from unittest.mock import MagicMock

import pytest

if find_spec("vllm") is None:
    pytest.skip("needs vLLM", allow_module_level=True)
os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"  # before vLLM and Triton are imported

from engine_grammars import check_grammars, structured_texts
from engines import workload
from engines.served import Served, server_command
from engines.vllm import Engine, chains, schedule_ahead
from specds.integrations.adapter import Adapter
from specds.integrations.vllm import VllmAdapter

STEPS = "specds:row_steps_total "

PREEMPTION = {"num_gpu_blocks_override": 14, "block_size": 32, "max_model_len": 400}

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module", autouse=True)
def plug_in():
    from specds.integrations import vllm_plugin

    vllm_plugin.register()


def texts(engine, prompts, **sampling):
    return engine.generate(prompts[:5], max_tokens=24, **sampling)


@pytest.mark.parametrize(
    "about",
    [
        {"max_num_seqs": 2},
        {"max_num_batched_tokens": 64},
        PREEMPTION,
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


@pytest.mark.parametrize("about", [{}, {"max_num_batched_tokens": 64}, PREEMPTION])
def test_greedy_text_is_the_engine_s_own_with_scheduling_ahead(prompts, about):
    with Engine(**about) as engine:
        expected = texts(engine, prompts)
    about = {**about, "async_scheduling": True, "disable_log_stats": False}
    with Engine(**chains(4), **about) as engine:
        assert texts(engine, prompts) == expected
        engine.proposer.wait()
        assert engine.proposer.num_failures == 0
        assert engine.proposer.drafter.stats()["num_refused"] == 0
        found = [counter(engine, f"num_{name}_tokens") for name in ("draft", "accepted")]
    print(f"\nscheduled ahead: verified and accepted tokens: {found}")
    assert found[1] > 20


@pytest.mark.parametrize("penalties", [{}, {"repetition_penalty": 1.3, "presence_penalty": 1.5}])
def test_adaptive_verification_expects_as_many_tokens_as_are_accepted(
    prompts, penalties, monkeypatch
):
    import torch
    from vllm.v1.worker.gpu.spec_decode import adaptive_verification as adaptive

    about = {"async_scheduling": True, "disable_log_stats": False}
    with Engine(**chains(4), max_num_seqs=2, **about) as engine:
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
        texts(engine, prompts, **penalties)
        accepted = counter(engine, "num_accepted_tokens")
    print(f"\naccepted tokens with {penalties}: {sum(expected):.1f} expected, {accepted} found")
    assert accepted / 1.5 < sum(expected) < accepted * 1.5


def test_failures_cost_no_text(prompts, monkeypatch):
    from specds.integrations.vllm_v2 import ChainSpeculator

    with Engine() as engine:
        expected = texts(engine, prompts[:2])
    monkeypatch.setattr(ChainSpeculator, "_last_tokens", None)
    with Engine(**chains(4)) as engine:
        assert texts(engine, prompts[:2]) == expected
        assert engine.proposer.num_failures > 10


def test_the_worker_measures_passes_at_its_start_and_drafts_follow_them(prompts, monkeypatch):
    with Engine() as engine:
        expected = texts(engine, prompts)
    logged = MagicMock()
    monkeypatch.setattr(VllmAdapter, "log", logged)
    with Engine(**chains(4, step_cost="measured"), disable_log_stats=False) as engine:
        assert engine.proposer.measures
        assert texts(engine, prompts) == expected
        stats = engine.proposer.drafter.stats()
        assert stats["num_draft_tokens"] == verified(engine) > 0
        assert engine.proposer.num_failures == 0
    [line] = [call.args[1] for call in logged.info.call_args_list if "ms of passes" in call.args[0]]
    times = {int(size): float(ms) for size, ms in (part.split(": ") for part in line.split(", "))}
    assert list(times) == [1, 2, 3, 4, 6, 8, 12, 16]  # at most four rows of five tokens
    assert all(ms > 0 for ms in times.values())


@pytest.mark.parametrize("is_ahead", [False, True])
def test_new_weights_keep_the_request_cache(prompts, is_ahead):
    """By the calls of TRL's colocated mode, and of `collective_rpc("reload_weights")`."""
    about = {"async_scheduling": is_ahead, "disable_log_stats": False}
    accepted = [0]
    with Engine(**chains(4, memory_scope="shared"), **about) as engine:
        speculator, model = engine.proposer, engine.runner.get_model()
        speculator.drafter = drafter = MagicMock(wraps=speculator.drafter)
        expected = texts(engine, prompts)
        name, weights = next(iter(model.named_parameters()))
        changes = (
            lambda: model.load_weights([(name, weights.clone())]),
            lambda: engine.llm.collective_rpc("reload_weights"),
        )
        for number, change in enumerate(changes, start=1):
            accepted.append(counter(engine, "num_accepted_tokens"))
            change()
            assert texts(engine, prompts) == expected
            if is_ahead:
                speculator.wait()
            assert drafter.reset_acceptance.call_count == number
        assert speculator.num_failures == 0
    # All texts are in the cache the second time.
    assert accepted[2] - accepted[1] > 1.3 * accepted[1]


def test_drafts_of_a_step_have_one_size_of_the_schedule(prompts):
    with Engine() as engine:
        expected = texts(engine, prompts)
    drafting = chains(4)
    sizes = {"num_speculative_tokens_per_batch_size": [(1, 2, 4), (3, 3, 0), (4, 4, 2)]}
    drafting["speculative_config"] = {**drafting["speculative_config"], **sizes}
    found = set()
    with Engine(**drafting) as engine:
        cut = engine.proposer.cut

        def seen(drafts):
            rows = cut(drafts).draft_token_ids
            found.add((len(rows), frozenset(map(len, rows))))
            return drafts

        engine.proposer.cut = seen
        assert texts(engine, prompts) == expected
        stats = engine.proposer.drafter.stats()
        assert engine.proposer.num_failures == stats["num_refused"] == 0
        assert stats["num_accepted_tokens"] > 20
    assert all(len(sizes) == 1 and max(sizes) in (0, 2, 4) for _, sizes in found)
    assert (4, frozenset({4})) not in found  # vLLM allows 2 for four rows


@pytest.mark.parametrize(("backend", "is_ahead"), [("xgrammar", False), ("guidance", True)])
def test_drafts_hold_what_grammars_force_and_nothing_forbidden(
    prompts, backend, is_ahead, monkeypatch
):
    about = {"async_scheduling": is_ahead, "disable_log_stats": False}
    check_grammars(monkeypatch, Engine, chains(4), prompts, backend, **about)


def test_forbidden_drafts_are_cut_and_not_counted(prompts, monkeypatch):
    """Without the constraints, whose tests would show nothing otherwise."""
    about = {"disable_log_stats": False}
    with Engine(**about) as engine:
        expected = structured_texts(engine, prompts)
    monkeypatch.setattr(Adapter, "choose_allowed", lambda *_: None)
    with Engine(**chains(4), **about) as engine:
        assert structured_texts(engine, prompts) == expected
        stats = engine.proposer.drafter.stats()
        assert stats["num_cut_tokens"] > 20
        assert stats["num_draft_tokens"] == verified(engine)


def test_requests_specify_a_tenant_or_no_drafts(prompts):
    steps = []
    with Engine(**chains(4, memory_scope="tenant", datastore=None)) as engine:
        drafter = engine.proposer.drafter
        for extra in ("ann", 5, "5", "bob", None):
            before = drafter.stats()["num_row_steps"]
            options = {"specds_off": "true"} if extra is None else {"specds_tenant": extra}
            engine.generate(prompts[:1], max_tokens=24, extra_args=options)
            steps.append(drafter.stats()["num_row_steps"] - before)
        assert engine.proposer.num_failures == 0
        assert len(engine.proposer.request_options) == 1
    first, number, same, other, off = steps
    assert first == number == other > 2 * same
    assert off == 0


@pytest.mark.parametrize(
    ("specds", "is_adaptive", "default"),
    [(True, False, False), (True, True, True), (False, False, True)],
)
def test_scheduling_stays_as_vllm_chose_it_with_adaptive_verification(
    specds, is_adaptive, default, monkeypatch
):
    from vllm.config import VllmConfig
    from vllm.engine.arg_utils import EngineArgs

    schedule_ahead()
    # A CPU has no CUDA graphs, which it requires.
    monkeypatch.setattr(VllmConfig, "_validate_adaptive_verification", lambda _: None)
    for asked in (None, True, False):
        about = {**chains(4), "async_scheduling": asked}
        about["speculative_config"]["enable_adaptive_verification"] = is_adaptive
        if not specds:
            del about["additional_config"]
        config = EngineArgs(model=workload.model_path(), **about).create_engine_config()
        is_ahead = default if asked is None else asked
        assert config.scheduler_config.async_scheduling == is_ahead


def test_the_documented_line_serves_tenants_and_metrics(tmp_path, prompts):
    with Engine() as engine:
        [expected] = engine.generate(prompts[:1], max_tokens=24)
    options = {"memory_scope": "tenant", "step_cost": "ignored", "min_prob": 0.0}
    words, settings = server_command("vllm_v2", workload.model_path(), options)
    settings |= {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "VLLM_LOGGING_LEVEL": "INFO"}
    settings |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    words = (*words, "--dtype", "float32", "--enforce-eager", "--max-model-len", "1024")
    about = {"model": workload.model_path(), "prompt": prompts[0], "return_token_ids": True}
    about |= {"max_tokens": 24, "ignore_eos": True, "temperature": 0}
    steps = [0]
    with Served((*words, "--max-num-seqs", "4"), tmp_path / "log", **settings) as server:
        for extra in ({"specds_tenant": 5}, {"specds_tenant": "5"}, {"specds_off": "true"}):
            with server.asked("POST", "/v1/completions", **about, vllm_xargs=extra) as answer:
                assert json.load(answer)["choices"][0]["token_ids"] == expected
            lines = server.text("/metrics").splitlines()
            steps += [float(line.split()[-1]) for line in lines if line.startswith(STEPS)]
    _, first, second, off = steps
    assert second - first < first / 2
    assert off == second
    assert "specds drafts at most 8 tokens per row" in (tmp_path / "log").read_text()


def verified(engine):
    """Return the number of drafted tokens that vLLM verified."""
    return counter(engine, "num_draft_tokens")


def counter(engine, name):
    [metric] = [metric for metric in engine.llm.get_metrics() if metric.name.endswith(name)]
    return metric.value
