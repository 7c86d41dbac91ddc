"""The GPU benchmark: dry runs on a CPU, forced answers, shapes and thresholds."""

import json
from argparse import Namespace

import pytest
import torch
from transformers import AutoModelForCausalLM

import specds
from gpu.__main__ import DRY, USUAL, main
from gpu.forced import measure_forced
from gpu.shapes import config_of
from replays import code_answers
from specds.bench.acceptance.measure import Trace, replay
from specds.bench.transcripts import Transcript, read_transcripts


def figures_of(out):
    return {figure["name"]: figure for figure in json.loads(out.read_text())["figures"]}


def test_all_parts_run_on_a_cpu(tmp_path, capsys):
    out = tmp_path / "gpu.json"
    parts = ("real", "invariant", *USUAL)
    main([*parts, "--dry", "--out", str(out)])
    printed, figures = capsys.readouterr().out, figures_of(out)
    assert not {f"{part} failed" for part in parts} & figures.keys(), printed
    assert figures["63 nodes after 16 tokens, over none"]["met"] is not None
    assert figures["float32: texts of specds that differ"]["met"]
    assert figures["float32, chat: texts that differ by drafts, shape_invariant"]["met"]


@pytest.mark.parametrize(
    ("shape", "expected"), [("llama-2-7b", 6_738_415_616), ("llama-3-8b", 8_030_261_248)]
)
def test_shape_has_the_weights_of_the_published_model(shape, expected):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config_of(shape))
    assert sum(weight.numel() for weight in model.parameters()) == expected


@pytest.fixture(scope="module")
def files(tmp_path_factory, demo_tokenizer):
    """Return a datastore of code, and some of its lines as answers."""
    return code_answers(tmp_path_factory.mktemp("forced"), demo_tokenizer, one=(0, 40))


def test_forced_answers_are_accepted_as_in_a_replay(files, demo_tokenizer):
    path, options = files / "one.jsonl", Namespace(**{**DRY, "new_tokens": 20}, dry=True)
    options.tokenizer = None
    plain, row = measure_forced(options, path, files / "code.specds", max_nodes=8)
    config = specds.FusedConfig(recycled=False)
    drafter, trace = specds.FusedDrafter(files / "code.specds", config), Trace()
    for answer in read_transcripts(path, demo_tokenizer, 4096):
        # Generation takes the first token from the prefill and drafts after it.
        session, truth = drafter.session(answer.prompt_ids), answer.completion_ids
        session.observe(truth[:1])
        trace.merge(replay(session, Transcript("one", answer.prompt_ids, truth[1:]), 8))
    for figure in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
        assert row[figure] == getattr(trace.stats, figure)
    assert row["mean_acceptance_length"] > 1.2
    assert row["num_tokens"] == plain["num_tokens"] == 40
    assert (plain["num_drafts"], plain["num_draft_tokens"]) == (38, 0)


def test_gpu_benchmark_compares_figures_with_thresholds(files, tmp_path, capsys):
    out = tmp_path / "gpu.json"
    # A speedup of 1,000 cannot be met.
    case = ("--case", files / "one.jsonl", files / "code.specds", 1000)
    assert main([*map(str, ("answers", "--dry", *case, "--out", out))]) == 1
    assert "missed: one: speed-up" in capsys.readouterr().out
    met = {figure["name"]: figure["met"] for figure in json.loads(out.read_text())["figures"]}
    assert met["one: speed-up"] is False
    assert met["one: tokens a forward"] is None
    assert met["one, batch 2: speed-up"] in (True, False)
