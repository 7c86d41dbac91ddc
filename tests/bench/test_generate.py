"""Generation measured: the clock's arithmetic, texts that differ, and what is reported."""

import json
from functools import partial

import pytest

from replays import code_answers
from specds.bench.generation import report
from specds.bench.generation.measure import Plan, batches_of, measure
from specds.bench.generation.report import altered, rows_of, way_label
from specds.bench.generation.target import BenchTarget, CallResult, Way
from specds.generation.stats import GenerationStats

GREEDY = {"do_sample": False, "max_new_tokens": 4}


class FakeClock:
    """Time that passes only in ways."""

    now = 0.0

    def __call__(self):
        return self.now


class FakeWay:
    """Takes a second to begin and `seconds` a token; the second run takes `drift` as long."""

    def __init__(self, clock, seconds, text=(7, 8, 9, 10), drift=2.0, forward_s=2.0):
        self.clock, self.seconds, self.text, self.drift = clock, seconds, text, drift
        self.forward_s = forward_s
        self.calls = 0

    def start(self):
        return self.call

    def call(self, batch, settings):
        self.calls += 1
        # Two calls warm up, and two requests make a run.
        pace = self.drift if self.calls > 4 else 1
        self.clock.now += pace * (1 + self.seconds * (settings["max_new_tokens"] - 1))
        stats = GenerationStats(num_drafts=3, num_draft_tokens=6, num_emitted_tokens=4)
        stats.prefill_s, stats.draft_s, stats.total_s = 1.0, 0.5, 4.0
        stats.forward_s = self.forward_s
        return CallResult([list(self.text)] * len(batch), stats)


@pytest.fixture
def clock(monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr("specds.bench.turns.perf_counter", clock)
    return clock


def rows_by(model, ways):
    """The rows of two runs over two requests."""
    calls = {1: batches_of([[1, 2]] * 2, 1)}
    return rows_of(measure(Plan(BenchTarget(model), ways, {"greedy": GREEDY}, calls, 2, 0, True)))


def test_figures_follow_the_clock(clock, tiny_model):
    ways = [
        Way("generate", FakeWay(clock, 3).start, is_plain=True),
        Way("plain", FakeWay(clock, 2, forward_s=4.0).start, is_plain=True, is_ours=True),
        Way("transformers-prompt-lookup", FakeWay(clock, 0.1).start),
        Way("fused", FakeWay(clock, 1, drift=1).start, is_ours=True, max_nodes=8),
    ]
    rows = {row["name"]: row for row in rows_by(tiny_model[0], ways)}
    assert [row["kind"] for row in rows.values()] == ["baseline"] * 3 + ["drafter"]
    fused = rows["fused"]
    assert (fused["num_requests"], fused["num_tokens"]) == (2, 8)
    assert fused["tokens_per_s"] == fused["tokens_per_s_min"] == fused["tokens_per_s_max"] == 1
    # The baseline takes 1 + 3 * 2 seconds for 4 tokens, and in the second run twice that.
    assert rows["plain"]["tokens_per_s"] == pytest.approx((4 / 7 + 4 / 14) / 2)
    # Prompt lookup is faster than the baselines of one token per pass.
    assert {row["fastest_plain"] for row in rows.values()} == {"plain"}
    names = ("speed_up_min", "speed_up", "speed_up_max")
    assert [fused[name] for name in names] == pytest.approx([7 / 4, 10.5 / 4, 14 / 4])
    names = ("speed_up_over_generate_min", "speed_up_over_generate_max")
    assert [fused[name] for name in names] == pytest.approx([10 / 4, 20 / 4])
    assert rows["plain"]["speed_up"] == 1
    assert (fused["num_drafts"], fused["nodes_per_draft"]) == (2 * 2 * 3, 2)
    shares = {"prefill": 0.25, "draft": 0.125, "forward": 0.5, "rest": 0.125}
    assert {phase: share for phase, share in fused["shares"].items() if share} == shares
    assert fused["outside_forward"] == pytest.approx(1 / 3)
    # A pass of `fused` takes half as long as one of `plain` here, and gives as many tokens.
    assert [row["pass_cost"] for row in rows.values()] == [None, 1, None, 0.5]
    assert fused["expected_speed_up"] == fused["mean_acceptance_length"] / 0.5


def test_differing_text_is_counted_and_fails_in_float32(clock, tiny_model):
    ways = [
        Way("generate", FakeWay(clock, 1).start, is_plain=True),
        Way("fused", FakeWay(clock, 1, text=(7, 8, 0, 0)).start, is_ours=True),
    ]
    same, other = rows_by(tiny_model[0], ways)
    assert (same["num_differing"], other["num_differing"]) == (0, 4)
    document = {"dtype": "float32", "rows": [same, other]}
    assert altered(document) == [other]
    assert altered({**document, "dtype": "bfloat16"}) == []
    assert altered({**document, "rows": [{**other, "mode": "sampled"}]}) == []


def test_statistics_of_tiny_runs_are_complete():
    few = {"num_emitted_tokens": 5, "num_drafts": 1, "num_accepted_tokens": 3, "total_s": 24.5}
    assert str(GenerationStats(**few)) == "5 tokens in 24.50 s, 0.2/s; 1 pass, 4.0 tokens each"
    assert str(GenerationStats()) == "0 tokens in 0.00 s, 0/s; 0 passes, 1.0 tokens each"


# The command.


@pytest.fixture(scope="module")
def files(tmp_path_factory, demo_tokenizer):
    """A folder with a datastore of code and two files of its lines as answers."""
    folder = tmp_path_factory.mktemp("generate")
    return code_answers(folder, demo_tokenizer, one=(0, 40), two=(200, 300))


@pytest.fixture
def command(run):
    return partial(run, "bench", "generate")


TINY = ("--model", "demo-tiny", "--device", "cpu", "--runs", "1", "--max-new-tokens", "6")


def test_command_prints_a_row_for_each_way(command, files):
    code, out, _ = command(
        *(*TINY, "--transcripts", files / "one.jsonl", files / "two.jsonl"),
        *("--datastore", files / "code.specds", "--drafter", "rest", "--max-nodes", "2,auto"),
        *("--baseline", "generate,static,plain,transformers-prompt-lookup", "--batch", "1,2"),
        *("--modes", "greedy", "--json"),
    )
    assert code == 0
    document = json.loads(out)
    about = {"model": "demo-tiny", "dtype": "float32", "device": "cpu"}
    assert about.items() <= document.items()
    rows = document["rows"]
    # At two sizes of batch, six ways each.
    assert len(rows) == 2 * 6
    for row in rows:
        assert row.keys() == rows[0].keys()
        if row["status"] == "ok":
            assert (row["num_requests"], row["num_tokens"]) == (4, 24)
            assert row["speed_up_min"] <= row["speed_up"] <= row["speed_up_max"]
            assert row["num_differing"] == 0
        else:
            assert (row["batch"], row["name"]) == (2, "transformers-prompt-lookup")
            assert "batch_size" in row["reason"]
    assert {way_label(row, rows) for row in rows if row["kind"] == "drafter"} == {
        "rest, 2",
        "rest, auto",
    }


def test_changed_text_fails_the_command(command, files, monkeypatch):
    monkeypatch.setattr(report, "altered", lambda _: [{}])
    code, _, err = command(
        *(*TINY, "--transcripts", files / "one.jsonl", "--datastore", files / "code.specds"),
        *("--baseline", "plain", "--limit", "1", "--modes", "greedy", "--json"),
    )
    assert code == 1
    assert "a drafter changed the text" in err
