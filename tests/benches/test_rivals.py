"""Rivals of the replay benchmark: checked, timed, absent, refused."""

import os
import sys
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replays import SEPARATOR, VOCAB_SIZE, build_tiny, patient, transcript
from rivals import IN_THIS_PROCESS, TAKES_DATASTORE, entrants
from rivals.answers import RivalAbsentError, RivalAnswerError
from rivals.suffix_automaton import SuffixAutomatonDrafter
from specds.bench.engines import ENTRANTS, check_names, engines_of
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
            text = file.read()
        self.text = [int.from_bytes(text[i : i + 2], "little") for i in range(0, len(text), 2)]

    @classmethod
    def build(cls, tokens, index, vocab):
        open(index, "w").close()
        print("rivals print what they like")
        return cls(tokens)

    def places(self, pattern):
        ends = range(len(pattern), len(self.text) + 1)
        return [end for end in ends if self.text[end - len(pattern) : end] == pattern]

    def contains(self, pattern):
        return bool(self.places(pattern))

    def count(self, pattern):
        return len(self.places(pattern)) + WRONG

    def count_next(self, pattern):
        counts = [0] * 65536
        for end in self.places(pattern):
            if end < len(self.text):
                counts[self.text[end]] += 1
        return counts
"""


@contextmanager
def installed(monkeypatch, folder, name, code):
    """A rival that an interpreter finds."""
    (folder / f"{name}.py").write_text(code)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    yield sys.executable


def run_rival(name, datastore, python, requests):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ENTRANTS, name, entrants(python)[name])
        [engine] = engines_of([name], [datastore], DrafterInputs(), requests)
    return list(measure([engine], [3, 6], requests, warm_memory=True))


REQUESTS = [transcript([1, 2], [3, 0, 1, 2, 3])]


def test_a_rival_drafts_from_the_text_of_the_datastore(monkeypatch, tmp_path, datastore):
    code = FAKE_TOKENGRAMS.replace("WRONG", "0")
    with installed(monkeypatch, tmp_path, "tokengrams", code) as python:
        cells = run_rival("tokengrams", datastore, python, REQUESTS)
    assert [(cell.status, cell.reason) for cell in cells] == [("ok", None)] * 2
    chains = [naive_chain(datastore, [1, 2], budget) for budget in (3, 6)]
    nodes = [cell.traces["a"].stats.num_draft_tokens for cell in cells]
    assert nodes[0] > 0
    assert len(chains[0]) == 3
    for cell, drafted in zip(cells, chains, strict=True):
        truth = REQUESTS[0].completion_ids.tolist()
        wrong = [a != b for a, b in zip(drafted, truth[:-1], strict=False)]
        right = wrong.index(True) if True in wrong else len(wrong)
        assert cell.traces["a"].accepted[0] == right
        assert all(elapsed > 0 for elapsed in cell.traces["a"].draft_ns)


def naive_chain(datastore, context, length):
    """The likeliest next token after the longest suffix that occurs, and again after it."""
    text = [token for document in datastore for token in (*document.token_ids.tolist(), SEPARATOR)]
    drafted = []
    while len(drafted) < length:
        whole = [*context, *drafted]
        for start in range(len(whole)):
            suffix = whole[start:]
            ends = range(len(suffix), len(text))
            following = [text[end] for end in ends if text[end - len(suffix) : end] == suffix]
            best = max(range(VOCAB_SIZE), key=following.count)
            if following and best != SEPARATOR:
                drafted.append(best)
                break
        else:
            break
    return drafted


def test_a_rival_that_counts_wrong_is_refused_before_it_is_timed(monkeypatch, tmp_path, datastore):
    code = FAKE_TOKENGRAMS.replace("WRONG", "1").replace("def contains", "def contains_not")
    with installed(monkeypatch, tmp_path, "tokengrams", code) as python:
        cells = run_rival("tokengrams", datastore, python, REQUESTS)
    for cell in cells:
        [row] = rows_of(cell)
        assert row["status"] == "refused"
        assert "wrong counts" in row["reason"]
        assert row["mean_acceptance_length"] is row["draft_p50_us"] is None


@pytest.mark.parametrize("python", [None, "no/such/python", sys.executable])
def test_an_absent_rival_is_reported_as_absent(tmp_path, datastore, python):
    for name in (name for name, takes in TAKES_DATASTORE.items() if takes):
        cells = run_rival(name, datastore, python, REQUESTS)
        assert {cell.status for cell in cells} == {"absent"}
        assert cells[0].reason
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(ENTRANTS, name, entrants(python)[name])
            with pytest.raises(ValueError, match="needs a datastore: give one by --datastore"):
                check_names([name], datastore=False, model=False)
