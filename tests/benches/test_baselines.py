"""Published baselines of the acceptance benchmark: checked, timed, absent, rejected."""

import os
import sys

import pytest

from baselines import IN_THIS_PROCESS, TAKES_DATASTORE, baselines
from baselines.answers import BaselineAbsentError, BaselineAnswerError
from baselines.corpus import sampled
from datastores import build
from replays import SEPARATOR, VOCAB_SIZE, build_tiny, transcript
from specds import Datastore
from specds.bench.acceptance.measure import measure
from specds.bench.acceptance.report import rows_of
from specds.bench.drafters import EXTERNAL_DRAFTERS, drafters_of
from specds.drafters import DrafterInputs


@pytest.fixture(scope="module")
def datastore(tmp_path_factory):
    return build_tiny(tmp_path_factory.mktemp("baselines") / "tiny.specds")


def test_prompt_lookup_with_other_drafts_is_rejected_or_absent(monkeypatch):
    baseline = IN_THIS_PROCESS["transformers-prompt-lookup"]
    asked = [transcript([1, 2, 3, 1], [2, 3])]
    with baseline.open(None, asked) as make:
        assert make().session([1, 2, 1]).draft(4).token_ids.tolist() == [2, 1]
    module = "transformers.generation.candidate_generator"
    wrong = "PromptLookupCandidateGenerator.get_candidates"
    with monkeypatch.context() as patch:
        patch.setattr(f"{module}.{wrong}", lambda _self, context: (context, None))
        with (
            pytest.raises(BaselineAnswerError, match=r"\[\] drafted, \[3, 1, 2\] followed"),
            baseline.open(None, asked),
        ):
            pass
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BaselineAbsentError, match="pip install"), baseline.open(None, asked):
        pass


FAKE_RETRIEVER = """
class StubWriter:
    def __init__(self, path, vocab_size):
        self.file = open(path, "w")
        print("a baseline may print")

    def add_entry(self, tokens):
        print(*tokens, file=self.file)

    def finalize(self):
        self.file.close()


class StubReader:
    def __init__(self, path):
        self.texts = [list(map(int, line.split())) for line in open(path)]

    def search(self, context, choices):
        places = [(text, at) for text in self.texts for at in range(1, len(text))]
        found = [text[at : at + 4] for text, at in places if text[at - 1] == context[-1]]
        return [[[*(token + WRONG for token in path), -1] for path in found]]


Writer, Reader = StubWriter, StubReader
"""
REQUESTS = [transcript([1, 2], [3, 0, 1, 2, 4])]


def run_baseline(name, datastore, python):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(EXTERNAL_DRAFTERS, name, baselines(python)[name])
        [engine] = drafters_of([name], [datastore], DrafterInputs(), REQUESTS)
    return list(measure([engine], [3, 6], REQUESTS, warm_memory=True))


def run_fake(monkeypatch, folder, wrong):
    """Run a fake retriever in this interpreter, with `wrong` added to its tokens."""
    (folder / "draftretriever.py").write_text(FAKE_RETRIEVER.replace("WRONG", wrong))
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    texts = [[0, 1, 2, 3, 0, 1, 2, 3], [5, 2, 6]]
    store = build(folder / "d", texts, vocab_size=VOCAB_SIZE, separator=SEPARATOR)
    return run_baseline("draftretriever", store, sys.executable)


def test_baseline_drafts_from_the_datastore(monkeypatch, tmp_path):
    for cell, num_nodes in zip(run_fake(monkeypatch, tmp_path, "0"), (3, 5), strict=True):
        assert (cell.status, cell.reason) == ("ok", None)
        trace = cell.traces["a"]
        # After 2 come 3, 0, 1, 2, then 6: the first of them are right.
        assert trace.stats.num_draft_tokens == num_nodes
        assert trace.accepted[0] == min(num_nodes, 4)
        assert all(elapsed > 0 for elapsed in trace.draft_ns)


def test_baseline_with_invalid_tokens_is_rejected_before_timing(monkeypatch, tmp_path):
    for cell in run_fake(monkeypatch, tmp_path, "9"):
        [row] = rows_of(cell)
        assert row["status"] == "refused"
        assert "the vocabulary has 8" in row["reason"]
        assert row["mean_acceptance_length"] is row["draft_p50_us"] is None


@pytest.mark.parametrize("python", [None, "no/such/python", sys.executable])
def test_missing_baseline_is_reported_as_absent(tmp_path, datastore, python):
    for name in (name for name, takes in TAKES_DATASTORE.items() if takes):
        cells = run_baseline(name, datastore, python)
        assert {cell.status for cell in cells} == {"absent"}
        assert cells[0].reason


def test_sampled_corpus_has_every_nth_document(datastore, tmp_path):
    part = Datastore(sampled(datastore.path, datastore.num_tokens // 3, tmp_path / "part"))
    expected = [document.token_ids.tolist() for document in datastore][::3]
    assert [document.token_ids.tolist() for document in part] == expected
    assert part.tokenizer_fingerprint == datastore.tokenizer_fingerprint
