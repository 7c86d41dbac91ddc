"""A real SGLang on a CPU with stand-ins for its kernels: run by `make test-sglang`."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("sglang", exc_type=ImportError)

from engine_grammars import SCHEMA
from engines import workload
from engines.sglang import Engine
from specds.integrations import sglang as adapter

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]


@pytest.mark.parametrize(
    ("effort", "recycled", "least"), [("low", False, 5.2), ("normal", True, 5.6)]
)
def test_greedy_text_is_the_engine_s_own_and_drafts_are_accepted(
    prompts, plain, effort, recycled, least
):
    with Engine("NGRAM", options={"effort": effort, "recycle_predictions": recycled}) as engine:
        assert engine.generate(prompts) == plain
        steps, stats = engine.num_row_steps, engine.stats
    assert stats["num_failures"] == 0
    assert stats["num_opened"] == len(prompts)
    # The first step of a request begins its session, and the last one is not reported.
    assert stats["num_row_steps"] == steps - 2 * len(prompts)
    tokens_a_step = workload.tokens_a_step(plain, steps)
    print(f"\n{effort} effort: {tokens_a_step:.2f} tokens a row step")
    assert tokens_a_step > least


def test_rows_come_and_go_over_chunked_prefill_and_a_shared_cache(prompts):
    """Prompts share beginnings, texts end by tokens of drafts and at limits, and rows move."""
    about = {"chunked_prefill_size": 64, "max_running_requests": 16}
    rows = [[*ids, *ids[: row % 5]] for row in range(3) for ids in prompts]
    sampling = {"max_tokens": 48, "ignore_eos": False, "stop_token_ids": [13, 30, 200]}
    with Engine(**about) as engine:
        expected = engine.generate(rows, **sampling)
    assert len({*map(len, expected)}) > 2
    options = {"memory_scope": "shared", "recycle_predictions": True}
    with Engine("NGRAM", options=options, **about) as engine:
        assert engine.generate(rows, **sampling) == expected
        assert engine.num_cached > 0
        assert engine.generate(rows, max_tokens=1) == [text[:1] for text in expected]
        assert engine.stats["num_failures"] == 0


def test_preempted_requests_resume(prompts, plain, monkeypatch):
    """The engine retracts its rows every seventh step, as if memory were full."""
    monkeypatch.setenv("SGLANG_TEST_RETRACT", "1")
    monkeypatch.setenv("SGLANG_TEST_RETRACT_INTERVAL", "7")
    with Engine("NGRAM", options={"recycle_predictions": True}) as engine:
        assert engine.generate(prompts) == plain
        assert engine.num_retractions > 0
        assert engine.stats["num_failures"] == 0


@pytest.mark.parametrize("sabotage", ["garbage", "fails"])
def test_garbage_and_failures_cost_no_text(prompts, plain, sabotage):
    with Engine("NGRAM", options={}, sabotage=sabotage) as engine:
        assert engine.generate(prompts[:4]) == plain[:4]
        assert (engine.stats["num_failures"] > 0) == (sabotage == "fails")
        assert workload.tokens_a_step(plain[:4], engine.num_row_steps) < 1.5


@pytest.mark.parametrize("backend", ["xgrammar", "llguidance"])
def test_trees_hold_what_grammars_force(prompts, backend):
    json_schema, regex = json.dumps(SCHEMA), "( [a-e]{1,3}){8}"
    grammars = [{"json_schema": json_schema}, {"regex": regex}, {}]
    asked = {"max_tokens": 24, "structured": grammars, "ignore_eos": False}
    with Engine(grammar_backend=backend) as engine:
        expected = engine.generate(prompts[:3], **asked)
    steps = []
    for sabotage in ("ignores grammars", ""):
        with Engine("NGRAM", options={}, sabotage=sabotage, grammar_backend=backend) as engine:
            assert engine.generate(prompts[:3], **asked) == expected
            assert engine.stats["num_failures"] == 0
            steps.append(engine.num_row_steps)
    print(f"\n{backend}: {steps[0]} decode steps without the grammar, {steps[1]} with it")
    assert steps[1] < 0.9 * steps[0]


def test_rows_of_several_adapters_get_the_engine_s_own_text(tmp_path, prompts):
    """Mix prompts with and without LoRA in one batch, so that texts of one are drafts of others."""
    paths = {name: workload.lora_adapter(tmp_path / name, len(name)) for name in ("a", "bb")}
    about = {"lora_paths": paths, "lora_backend": "torch_native", "max_loras_per_batch": 3}
    rows = [(ids, adapter) for ids in prompts[:4] for adapter in (None, *paths)]
    asked, adapters = map(list, zip(*rows, strict=True))
    with Engine(**about) as engine:
        expected = engine.generate(asked, 48, adapters)
    assert len({*map(tuple, expected)}) == len(rows)
    options = {"memory_scope": "shared", "recycle_predictions": True}
    with Engine("NGRAM", options=options, **about) as engine:
        assert engine.generate(asked, 48, adapters) == expected
        assert workload.tokens_a_step(expected, engine.num_row_steps) > 2
        assert engine.stats["num_opened"] == len(rows)
        assert engine.stats["num_failures"] == 0


OPEN = """
import sys
from engines.sglang import Engine
if __name__ == "__main__":
    Engine("NGRAM", options={"datastore": sys.argv[1]})
"""


def test_a_datastore_of_another_tokenizer_is_refused_at_start(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(OPEN)
    arguments = [sys.executable, program, workload.other_datastore(tmp_path)]
    run = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert run.returncode != 0
    assert "its fingerprint is xxh3:other, that of the engine is " in run.stdout + run.stderr


def test_this_version_fits():
    assert adapter.missing() == []
    check = [sys.executable, "-W", "ignore", "-m", "specds.integrations.sglang", "--check"]
    assert subprocess.run(check, check=False).returncode == 0


def test_links_of_trees_are_those_that_the_engine_derives(prompts):
    """The engine's own host code, from the mask alone, against the parents."""
    from sglang.srt.speculative.ngram_worker import _derive_tree_links

    corpus = adapter.SpecdsCorpus({"datastore": workload.DATASTORE}, 16)
    names = [str(row) for row in range(len(prompts))]
    token_ids, mask = corpus.batch_get(names, prompts, [len(ids) for ids in prompts])
    assert corpus.num_failures == 0
    next_tokens, next_siblings = _derive_tree_links(mask.astype(bool), len(prompts), 16)
    trees = token_ids.reshape(-1, 16)
    masks = mask.reshape(-1, 16, 16).astype(bool)
    for row in range(len(prompts)):
        expected = {tuple(trees[row][ancestors]) for ancestors in masks[row]}
        assert paths_of(next_tokens[row], next_siblings[row], trees[row]) == expected


def paths_of(next_tokens, next_siblings, token_ids):
    """The paths of a tree by its links, from the root on."""
    paths, waiting = set(), [(0, ())]
    while waiting:
        node, above = waiting.pop()
        path = (*above, token_ids[node])
        paths.add(path)
        child = int(next_tokens[node])
        while child != -1:
            waiting.append((child, path))
            child = int(next_siblings[child])
    return paths
