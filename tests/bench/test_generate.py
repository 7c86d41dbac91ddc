"""Generation measured: the clock's arithmetic, forced answers, and what is reported."""

import json
from functools import partial

import pytest
import torch

import specds
from gpu.__main__ import main
from html_pages import Page
from replays import transcript
from specds.bench.generation import report
from specds.bench.generation.measure import Mode, Plan, measure
from specds.bench.generation.report import altered, rows_of, way_label
from specds.bench.generation.run import run_generate
from specds.bench.generation.shapes import SHAPES, num_bytes, random_model
from specds.bench.generation.ways import (
    Baseline,
    Job,
    Request,
    Result,
    Target,
    Way,
    baseline_way,
    batches,
)
from specds.bench.options import GenerateOptions
from specds.bench.replay.measure import Trace, replay
from specds.drafters import DrafterInputs, make_drafter
from specds.stats import GenerationStats

GREEDY = {"do_sample": False}


# Shapes.


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("llama-2-7b", 6_738_415_616),
        ("llama-2-13b", 13_015_864_320),
        ("llama-2-70b", 68_976_648_192),
        ("codellama-34b", 33_743_970_304),
        ("llama-3-8b", 8_030_261_248),
        ("mistral-7b", 7_241_732_096),
        ("qwen2.5-7b", 7_615_616_512),
        ("tinyllama-1.1b", 1_100_048_384),
        ("llama-68m", 68_030_208),
    ],
)
def test_a_shape_has_as_many_weights_as_the_published_model(shape, expected):
    assert num_bytes(shape, "bfloat16") == 2 * expected


# The clock.


class FakeClock:
    """Time that passes only in ways."""

    now = 0.0

    def __call__(self):
        return self.now


class FakeWay:
    """Takes a second to begin and `seconds` a token; later runs take `drift` as long."""

    def __init__(self, clock, seconds, text=(7, 8, 9, 10), drift=2.0):
        self.clock, self.seconds, self.text, self.drift = clock, seconds, text, drift
        self.whole_calls = 0

    def start(self):
        return self.call

    def call(self, job):
        self.whole_calls += job.num_tokens > 1
        # Two calls warm up, and two requests make a run.
        pace = self.drift if self.whole_calls > 4 else 1
        self.clock.now += pace * (1 + self.seconds * (job.num_tokens - 1))
        stats = GenerationStats(num_drafts=3, num_draft_tokens=6, num_emitted_tokens=4)
        stats.prefill_s, stats.forward_s, stats.draft_s, stats.total_s = 1.0, 2.0, 0.5, 4.0
        return Result([list(self.text[: job.num_tokens])] * len(job.batch.requests), stats)


@pytest.fixture
def clock(monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr("specds.demo.measure.perf_counter", clock)
    return clock


@pytest.fixture(scope="module")
def tiny():
    return random_model("tiny")


def rows_by(model, ways):
    """The rows of two runs over two requests."""
    calls = {1: batches([Request("a", [1, 2], 4)] * 2, 1)}
    target = Target.of(model, "auto", forced=False)
    return rows_of(measure(Plan(target, ways, [Mode("greedy", GREEDY)], calls, 2, 0, True)))


def test_figures_are_those_of_the_clock(clock, tiny):
    ways = [
        Way("generate", FakeWay(clock, 3).start, Baseline.GENERATE),
        Way("plain", FakeWay(clock, 2).start, Baseline.PLAIN),
        Way("transformers-prompt-lookup", FakeWay(clock, 0.1).start, Baseline.PROMPT_LOOKUP),
        Way("fused", FakeWay(clock, 1, drift=1).start, budget=8),
    ]
    rows = {row["name"]: row for row in rows_by(tiny, ways)}
    fused = rows["fused"]
    assert (fused["num_requests"], fused["num_tokens"]) == (2, 8)
    assert fused["tokens_per_s"] == fused["tokens_per_s_min"] == fused["tokens_per_s_max"] == 1
    assert (fused["first_token_s"], fused["decode_tokens_per_s"]) == (1, 1)
    # Plain decoding takes 1 + 3 * 2 seconds for 4 tokens, and in the second run twice that.
    assert rows["plain"]["tokens_per_s"] == pytest.approx((4 / 7 + 4 / 14) / 2)
    assert rows["plain"]["decode_tokens_per_s"] > rows["generate"]["decode_tokens_per_s"]
    # Prompt lookup is faster than plain decoding, and is not plain.
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


def test_a_text_that_differs_is_told_with_its_place_and_margin(clock, tiny):
    ways = [
        Way("generate", FakeWay(clock, 1).start, Baseline.GENERATE),
        Way("fused", FakeWay(clock, 1, text=(7, 8, 0, 0)).start),
    ]
    same, other = rows_by(tiny, ways)
    assert (same["num_differing"], other["num_differing"]) == (0, 2)
    with torch.inference_mode():
        logits = tiny(torch.tensor([[1, 2, 7, 8]])).logits[0, -1].sort(descending=True).values
    for number, where in enumerate(other["divergences"]):
        assert (where["request"], where["position"]) == (number, 2)
        assert where["margin"] == pytest.approx(float(logits[0] - logits[1]))
    document = {"dtype": "float32", "rows": [same, other]}
    assert altered(document) == [other]
    assert altered({**document, "dtype": "bfloat16"}) == []
    assert altered({"dtype": "bfloat16", "rows": [{**other, "mode": "forced"}]}) != []


# Forced answers.


@pytest.fixture(scope="module")
def files(tmp_path_factory, demo_tokenizer):
    """A folder with a datastore of code and two files of its lines as answers."""
    folder = tmp_path_factory.mktemp("generate")
    text = "".join(f"def f{n}(a, b):\n    return a * {n} + b\n\n\n" for n in range(40))
    (folder / "code.txt").write_text(text)
    corpus = specds.open_corpus(str(folder / "code.txt"))
    specds.build_datastore(corpus, demo_tokenizer, folder / "code.specds")
    ids = demo_tokenizer(text)["input_ids"]
    for name, places in (("one", (0, 40)), ("two", (200, 300))):
        rows = [
            {"prompt_ids": ids[at : at + 25], "completion_ids": ids[at + 25 : at + 45]}
            for at in places
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


@pytest.mark.parametrize("name", ["fused", "rest", "prompt-lookup"])
def test_forced_answers_are_accepted_as_in_a_replay(files, demo_tokenizer, name):
    path = files / "one.jsonl"
    document = run_generate(
        GenerateOptions(
            shape="tiny",
            forced=True,
            transcripts=[path],
            datastores=[files / "code.specds"],
            drafters=[name],
            budgets=[8],
            baselines=["plain"],
            runs=1,
            contexts=(),
            device="cpu",
        )
    )
    plain, row = document["rows"]
    assert (row["num_differing"], row["mode"]) == (0, "forced")
    datastore = specds.Datastore.open(files / "code.specds")
    drafter, trace = make_drafter(name, DrafterInputs(datastore)), Trace()
    for line in path.read_text().splitlines():
        recorded = json.loads(line)
        # Generation takes the first token from the prefill, and drafts behind it.
        prompt, answer = recorded["prompt_ids"], recorded["completion_ids"]

        def open_session(prompt=prompt, first=answer[0]):
            session = drafter.session(prompt)
            session.observe([first])
            return session

        trace.merge(replay(open_session, transcript(prompt, answer[1:]), 8))
    for figure in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
        assert row[figure] == getattr(trace.stats, figure)
    assert row["mean_acceptance_length"] > 1.2
    assert row["num_tokens"] == plain["num_tokens"] == 40
    assert (plain["num_drafts"], plain["num_draft_tokens"]) == (38, 0)


# Compiling takes a minute on a CPU.
@pytest.mark.parametrize("baseline", [b for b in Baseline if b is not Baseline.COMPILED])
def test_a_baseline_writes_as_many_tokens_as_are_recorded(tiny, baseline):
    target = Target.of(tiny, "auto", forced=True)
    answer = [7, 8, 9, 7, 8, 9, 7, 8]
    job = Job(batches([Request("a", [7, 8, 9], 8, answer)], 1)[0], 8, GREEDY)
    result = baseline_way(baseline, target).start()(job)
    assert len(result.token_ids[0]) == 8
    # Its speed depends on what is written, so it has to write the record.
    if not baseline.is_plain or baseline is Baseline.PLAIN:
        assert result.token_ids == [answer]


# The command.


@pytest.fixture
def command(run):
    """Runs `specds bench generate`."""
    return partial(run, "bench", "generate")


FORCED = ("--forced", "--shape", "tiny", "--device", "cpu", "--runs", "1", "--max-new-tokens", "6")


def test_the_command_prints_rows_and_a_page(command, files, tmp_path):
    page = tmp_path / "report.html"
    code, out, _ = command(
        *(*FORCED, "--transcripts", files / "one.jsonl", files / "two.jsonl"),
        *("--datastore", files / "code.specds", "--drafter", "rest", "--budget", "2,auto"),
        *("--baseline", "generate,plain,transformers-prompt-lookup", "--batch", "1,2"),
        *("--context", "16", "--nodes", "2", "--html", page, "--json"),
    )
    assert code == 0
    document = json.loads(out)
    about = {"shape": "tiny", "model": None, "forced": True, "dtype": "float32", "device": "cpu"}
    assert about.items() <= document.items()
    rows = document["rows"]
    # Two files and both together, at two sizes of batch, five ways each.
    assert len(rows) == 3 * 2 * 5
    for row in rows:
        assert row.keys() == rows[0].keys()
        if row["status"] == "ok":
            assert row["num_tokens"] == 6 * row["num_requests"]
            assert row["speed_up_min"] <= row["speed_up"] <= row["speed_up_max"]
            assert row["num_differing"] == (0 if row["kind"] == "drafter" else None)
        else:
            assert (row["batch"], row["name"]) == (2, "transformers-prompt-lookup")
            assert "batch_size" in row["reason"]
    assert {way_label(row, rows) for row in rows if row["kind"] == "drafter"} == {
        "rest, 2",
        "rest, auto",
    }
    assert [row["num_nodes"] for row in document["verification_costs"]] == [0, 2]
    parsed = Page(page.read_text(encoding="utf-8"))
    assert parsed.ids == [
        "speed-up",
        "tokens-per-s",
        "time-shares",
        "pass-by-nodes",
        "speed-up-to-expect",
        "speed-up-by-batch",
    ]
    assert parsed.references == []
    assert "rest" in parsed.cells
    assert any("random weights of the shape tiny" in cell for cell in parsed.cells)


def test_a_changed_text_fails_the_command(command, files, monkeypatch):
    changed = {"kind": "drafter", "num_differing": 1, "mode": "forced"}
    monkeypatch.setattr(report, "altered", lambda _: [changed])
    code, _, err = command(
        *(*FORCED, "--transcripts", files / "one.jsonl", "--datastore", files / "code.specds"),
        *("--baseline", "plain", "--context", "none", "--limit", "1", "--json"),
    )
    assert code == 1
    assert "a drafter changed the text" in err


def test_what_cannot_be_measured_is_told_in_one_line(command, files, monkeypatch):
    monkeypatch.setitem(SHAPES, "small", ("LlamaConfig", {**SHAPES["tiny"][1], "vocab_size": 5}))
    one = ("--transcripts", files / "one.jsonl")
    demo = ("--tokenizer", "demo", "--device", "cpu", "--drafter", "prompt-lookup")
    tiny = ("--forced", "--shape", "tiny", *demo)
    for arguments, message in (
        ((*one, *tiny, "--model", "demo-tiny"), "no target: give a model by --model"),
        ((*one, "--shape", "tiny"), "add --forced"),
        ((*one, "--forced", "--shape", "huge", *demo), "no shape `huge`: choose of llama-2-7b"),
        ((*one, "--forced", "--shape", "tiny"), "no tokenizer"),
        ((*one, "--forced", "--shape", "small", *demo), "the model has 5"),
        (("--model", "demo-tiny"), "no prompts"),
        (("--model", "demo", "--forced"), "no answers to force"),
        ((*one, *tiny, "--runs", "0"), "runs must be at least 1, got 0"),
        ((*one, *tiny, "--batch", "0"), "a batch must hold at least 1 prompt, got 0"),
        ((*one, *tiny, "--batch", "3"), "make no batch of 3"),
        ((*one, *tiny, "--drafter", "rest"), "drafter `rest` needs a datastore"),
        ((*one, *tiny, "--baseline", "best"), "no baseline `best`: choose of generate"),
        ((*one, *tiny, "--modes", "best"), "no mode `best`: choose of greedy, sampled"),
        ((*one, *tiny, "--modes", ","), "no mode: choose of greedy, sampled"),
    ):
        code, out, err = command(*arguments)
        assert (code, out) == (1, ""), message
        assert message in err
        assert err.count("\n") == 1


# What a GPU is held to.


def test_the_gpu_benchmark_holds_each_figure_against_its_bar(files, tmp_path, capsys):
    out = tmp_path / "gpu.json"
    # No drafts are a thousand times as fast.
    case = ("--case", files / "one.jsonl", files / "code.specds", 1000)
    assert main([*map(str, ("answers", "--dry", *case, "--out", out))]) == 1
    assert "MISSED" in capsys.readouterr().out
    met = {figure["name"]: figure["met"] for figure in json.loads(out.read_text())["figures"]}
    assert met["one: speed-up"] is False
    assert met["one: rows not as recorded"] is True
    assert met["one: tokens a forward"] is None
    assert met["one, batch 2: speed-up"] in (True, False)
