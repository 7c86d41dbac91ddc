"""Rivals of the replay benchmark: checked, timed, absent, refused."""

import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datastores import build
from replays import SEPARATOR, VOCAB_SIZE, build_tiny, patient, transcript
from rivals import IN_THIS_PROCESS, TAKES_DATASTORE, entrants
from rivals.answers import RivalAbsentError, RivalAnswerError
from rivals.suffix_automaton import SuffixAutomatonDrafter
from specds.bench.engines import ENTRANTS, engines_of
from specds.bench.replay.measure import measure
from specds.bench.replay.report import rows_of
from specds.drafters import DrafterInputs

tokens = st.integers(0, 3)
texts = st.lists(tokens, min_size=1, max_size=20)


@pytest.fixture(scope="module")
def datastore(tmp_path_factory):
    return build_tiny(tmp_path_factory.mktemp("rivals") / "tiny.specds")


def test_a_prompt_lookup_that_drafts_otherwise_is_refused_or_absent(monkeypatch):
    rival = IN_THIS_PROCESS["transformers-prompt-lookup"]
    asked = [transcript([1, 2, 3, 1], [2, 3])]
    with rival.open(None, asked) as make:
        assert make().session([1, 2, 1]).draft(4).token_ids.tolist() == [2, 1]
    module = "transformers.generation.candidate_generator"
    wrong = "PromptLookupCandidateGenerator.get_candidates"
    with monkeypatch.context() as patch:
        patch.setattr(f"{module}.{wrong}", lambda _self, context: (context, None))
        with (
            pytest.raises(RivalAnswerError, match=r"\[\] drafted, \[3, 1, 2\] came"),
            rival.open(None, asked),
        ):
            pass
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(RivalAbsentError, match="pip install"), rival.open(None, asked):
        pass


def longest_before(context, texts):
    """The longest suffix that ends in a text, its length, and what followed it the last time."""
    for length in range(len(context), 0, -1):
        for text in reversed(texts):
            for end in range(len(text), length - 1, -1):
                if text[end - length : end] == context[-length:]:
                    return length, text[end:]
    return 0, []


@patient
@given(st.lists(texts, max_size=4), texts, st.integers(1, 5))
def test_the_suffix_automaton_drafts_what_followed_the_longest_match(answers, context, max_nodes):
    drafter = SuffixAutomatonDrafter()
    for answer in answers:
        session = drafter.session([3])
        session.observe(answer)
        session.finish()
    session = drafter.session(context[:1])
    for place in range(1, len(context) + 1):
        before = context[:place]
        own, shared = longest_before(before, [before[:-1]]), longest_before(before, answers)
        if own[0]:  # what follows goes up to the context's end
            own = (own[0], before[len(before) - 1 - len(own[1]) :])
        expected = (shared if shared[0] > own[0] else own)[1][:max_nodes]
        assert session.draft(max_nodes).token_ids.tolist() == expected
        session.observe(context[place : place + 1])


FAKE_TOKENGRAMS = """
class MemmapIndex:
    def __init__(self, tokens, *_args, **_options):
        with open(tokens, "rb") as file:
            self.text = memoryview(file.read()).cast("H").tolist()

    @classmethod
    def build(cls, tokens, index, vocab):
        open(index, "w").close()
        print("rivals print what they like")
        return cls(tokens)

    def places(self, pattern):
        ends = range(len(pattern), len(self.text))
        return [end for end in ends if self.text[end - len(pattern) : end] == pattern]

    def contains(self, pattern):
        return bool(self.places(pattern))

    def count(self, pattern):
        return len(self.places(pattern)) + WRONG

    def count_next(self, pattern):
        following = [self.text[end] for end in self.places(pattern)]
        return [following.count(token) for token in range(VOCAB_SIZE)]
"""
REQUESTS = [transcript([1, 2], [3, 0, 1, 2, 4])]


def run_rival(name, datastore, python):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ENTRANTS, name, entrants(python)[name])
        [engine] = engines_of([name], [datastore], DrafterInputs(), REQUESTS)
    return list(measure([engine], [3, 6], REQUESTS, warm_memory=True))


def run_fake(monkeypatch, folder, wrong):
    """Has the interpreter of the tests find a tokengrams whose counts are off by so much."""
    code = FAKE_TOKENGRAMS.replace("WRONG", wrong).replace("VOCAB_SIZE", str(VOCAB_SIZE))
    (folder / "tokengrams.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    texts = [[0, 1, 2, 3, 0, 1, 2, 3], [5, 2, 6]]
    store = build(folder / "d", texts, vocab_size=VOCAB_SIZE, separator=SEPARATOR)
    return run_rival("tokengrams", store, sys.executable)


def test_a_rival_drafts_from_the_text_of_the_datastore(monkeypatch, tmp_path):
    for cell, num_nodes in zip(run_fake(monkeypatch, tmp_path, "0"), (3, 4), strict=True):
        assert (cell.status, cell.reason) == ("ok", None)
        trace = cell.traces["a"]
        # 3, 0, 1, 2 are the likeliest after the longest suffix each time, and all of it is right.
        assert trace.stats.num_draft_tokens == trace.accepted[0] == num_nodes
        assert all(elapsed > 0 for elapsed in trace.draft_ns)


def test_a_rival_that_counts_wrong_is_refused_before_it_is_timed(monkeypatch, tmp_path):
    for cell in run_fake(monkeypatch, tmp_path, "1"):
        [row] = rows_of(cell)
        assert row["status"] == "refused"
        assert "wrong counts" in row["reason"]
        assert row["mean_acceptance_length"] is row["draft_p50_us"] is None


@pytest.mark.parametrize("python", [None, "no/such/python", sys.executable])
def test_an_absent_rival_is_reported_as_absent(tmp_path, datastore, python):
    for name in (name for name, takes in TAKES_DATASTORE.items() if takes):
        cells = run_rival(name, datastore, python)
        assert {cell.status for cell in cells} == {"absent"}
        assert cells[0].reason
