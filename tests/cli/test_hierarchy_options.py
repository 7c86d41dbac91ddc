"""`specds generate --drafter hierarchy:...`, and hierarchies by name."""

import copy
import json

import pytest

from specds.drafters import DrafterInputs, DrafterName, make_drafter
from specds.models.load import load_model
from specds.transformers.hierarchy.config import HierarchyConfig

GENERATE = ["generate", "--model", "demo-small", "import os\n\ndef main(", "--json"]


def test_hierarchy_keeps_the_text_and_reports_its_levels(run):
    options = ["--max-new-tokens", 12]
    alone = json.loads(run(*GENERATE, *options, "--max-nodes", 0)[1])
    code, out, _ = run(*GENERATE, *options, "--drafter", "hierarchy:demo-tiny")
    result = json.loads(out)
    assert code == 0
    assert result["token_ids"] == alone["token_ids"]
    told = run(*GENERATE[:-1], *options, "--drafter", "hierarchy:demo-tiny", "--verbose")[2]
    assert "redundancy" in told
    assert "level demo-tiny" in told
    level = result["stats"]["levels"]["demo-tiny"]
    assert level["num_drafted"] == result["stats"]["num_draft_tokens"] > 0
    assert result["stats"]["redundancy"] == pytest.approx(
        1 - result["stats"]["num_accepted_tokens"] / level["num_drafted"]
    )


def test_bigrams_of_the_model_draft_for_the_smallest_level(run, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDS_CACHE", str(tmp_path))
    options = ["--max-new-tokens", 12, "--drafter", "hierarchy:demo-tiny", "--model-tables"]
    code, out, _ = run(*GENERATE, *options)
    assert code == 0
    assert json.loads(out)["stats"]["levels"]["retrieval"]["num_drafted"] > 0


def test_bench_measures_hierarchies_with_other_drafters(run, datastore):
    options = ["--datastore", datastore, "--baseline", "plain", "--limit", 1, "--runs", 1]
    options += ["--max-new-tokens", 8, "--modes", "greedy", "--max-nodes", 4, "--json"]
    names = "prompt-lookup,hierarchy:demo-tiny+joined=yes"
    code, out, _ = run("bench", "generate", "--model", "demo", "--drafter", names, *options)
    assert code == 0
    other, row = (row for row in json.loads(out)["rows"] if row["kind"] == "drafter")
    assert (other["datastore"], row["status"]) == (None, "ok")
    assert row["datastore"]
    assert row["mean_acceptance_length"] > 1


def test_variants_are_named():
    named = DrafterName.parse("hierarchy: a , ablation=pre-self, b,")
    assert (named.options, named.models) == ({"ablation": "pre-self"}, ("a", "b"))
    assert DrafterName.parse("hierarchy:a+b").models == ("a", "b")
    model, tokenizer = load_model("demo-small", device="cpu")
    inputs = DrafterInputs(model=model, tokenizer=tokenizer)
    assert make_drafter("hierarchy:demo-tiny", inputs).config == HierarchyConfig()
    self_verified = make_drafter("hierarchy:demo-tiny,ablation=self", inputs)
    assert self_verified.config == HierarchyConfig.ablation("self")
    assert make_drafter("hierarchy:demo-tiny+joined=yes", inputs).config.joined


def test_models_of_another_tokenizer_are_refused(monkeypatch):
    target, tokenizer = load_model("demo-small", device="cpu")
    other = copy.deepcopy(tokenizer)
    other.add_tokens(["<another>"])
    with pytest.raises(ValueError, match="model `demo-tiny` has another tokenizer than the target"):
        make_drafter("hierarchy:demo-tiny", DrafterInputs(model=target, tokenizer=other))
