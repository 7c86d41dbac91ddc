"""`specds generate --drafter hierarchy:...`, and hierarchies by name."""

import copy
import json

import pytest
import torch

from specds import build_datastore, open_corpus
from specds.cli import display
from specds.hierarchy import HierarchyConfig, HierarchyName
from specds.loading import load_model, load_tokenizer
from specds.stats import GenerationStats, LevelStats

torch.set_num_threads(1)
GENERATE = ["generate", "--model", "demo-small", "--prompt", "import os\n\ndef main(", "--json"]


def test_a_hierarchy_writes_what_the_model_writes_and_says_what_its_levels_did(run):
    options = ["--max-new-tokens", 12]
    alone = json.loads(run(*GENERATE, *options, "--budget", 0)[1])
    code, out, _ = run(*GENERATE, *options, "--drafter", "hierarchy:demo-tiny")
    result = json.loads(out)
    assert code == 0
    assert result["token_ids"] == alone["token_ids"]
    level = result["stats"]["levels"]["demo-tiny"]
    assert level["num_drafted"] == result["stats"]["num_draft_tokens"] > 0
    assert result["stats"]["redundancy"] == pytest.approx(
        1 - result["stats"]["num_accepted_tokens"] / level["num_drafted"]
    )


@pytest.mark.parametrize(
    ("drafter", "code", "message"),
    [
        ("hierarchy-x:demo-tiny", 2, "no hierarchy `hierarchy-x`: try `hierarchy:SMALL,MIDDLE`"),
        ("hierarchy:a,window=3", 2, "`hierarchy` has no option `window`: try `hierarchy:ablation="),
        ("hierarchy:", 2, "`hierarchy:` names no models: try `hierarchy:SMALL,MIDDLE`"),
        ("fusd", 2, "no drafter `fusd`: choose of fused, rest, aded"),
        ("hierarchy:/no/such", 1, "no model `/no/such`: there is no such folder"),
    ],
)
def test_what_is_no_hierarchy_is_refused_in_one_line(run, drafter, code, message):
    got, out, err = run(*GENERATE, "--drafter", drafter)
    assert (got, out) == (code, "")
    assert message in err.splitlines()[-1]


def test_the_models_bigrams_draft_for_the_smallest_model(run, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDS_CACHE", str(tmp_path))
    options = ["--max-new-tokens", 12, "--drafter", "hierarchy:demo-tiny", "--model-tables"]
    code, out, _ = run(*GENERATE, *options)
    assert code == 0
    assert json.loads(out)["stats"]["levels"]["retrieval"]["num_drafted"] > 0


def test_hierarchies_are_measured_beside_other_drafters(run, tmp_path):
    corpus = tmp_path / "code"
    corpus.mkdir()
    (corpus / "add.py").write_text("def add(a, b):\n    return a + b\n" * 20)
    tokenizer, path = load_tokenizer("demo"), tmp_path / "code.specds"
    build_datastore(open_corpus(str(corpus)), tokenizer, path, tokenizer_name="demo")
    options = ["--datastore", path, "--baseline", "plain", "--limit", 1, "--runs", 1]
    options += ["--max-new-tokens", 8, "--modes", "greedy", "--budget", 4, "--json"]
    names = "prompt-lookup,hierarchy:demo-tiny+demo-small+joined=yes"
    code, out, _ = run("bench", "generate", "--model", "demo", "--drafter", names, *options)
    assert code == 0
    other, row = (row for row in json.loads(out)["rows"] if row["kind"] == "drafter")
    assert (other["datastore"], row["status"]) == (None, "ok")
    assert row["datastore"]
    assert row["mean_acceptance_length"] > 1


def test_variants_are_named():
    named = HierarchyName.parse("hierarchy: a , ablation=pre-self, b,")
    assert (named.config, named.models) == (HierarchyConfig.ablation("pre+self"), ("a", "b"))
    assert HierarchyName.parse("hierarchy:a+b").models == ("a", "b")
    assert HierarchyName.parse("hierarchy:a").config == HierarchyConfig()
    assert HierarchyName.parse("hierarchy:a+joined=yes").config.joined


def test_models_of_another_tokenizer_are_refused(monkeypatch):
    target, tokenizer = load_model("demo-small", device="cpu")
    other = copy.deepcopy(tokenizer)
    other.add_tokens(["<another>"])
    with pytest.raises(ValueError, match="model `demo-tiny` has another tokenizer than the target"):
        HierarchyName.parse("hierarchy:demo-tiny").load(target, other)


def test_the_table_of_a_run_has_the_papers_figures_and_a_row_for_each_level():
    stats = GenerationStats(num_drafts=10, num_draft_tokens=50, num_accepted_tokens=30)
    rows = dict(display.drafting_rows(stats))
    assert "redundancy" not in rows
    stats.levels = {"small": LevelStats(60, 50, 30, 1.5)}
    rows = dict(display.drafting_rows(stats))
    assert (rows["redundancy"], rows["target utilization"]) == ("40.0%", "25.0%")
    assert rows["level small"] == "30 of 50 kept above, 60 passes, 1.50 s"


def test_nothing_drafted_is_not_redundant():
    assert GenerationStats().redundancy == 0
    assert GenerationStats().target_utilization == 1
