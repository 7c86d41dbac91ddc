"""Generation measured: the clock's arithmetic, forced answers, and what is reported."""

import importlib.metadata
import json
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gpu
import specds
from html_pages import Page
from replays import patient, transcript
from specds import cli
from specds.bench.generation import curve, measure, run
from specds.bench.generation.measure import Mode, Plan
from specds.bench.generation.report import label, rows_of
from specds.bench.generation.requests import Request, batches, requests_of
from specds.bench.generation.run import GenerateOptions, altered, run_generate
from specds.bench.generation.shapes import SHAPES, config_of, num_bytes, random_model
from specds.bench.generation.ways import Baseline, Job, Result, Target, Way, baseline_way
from specds.bench.replay.trace import Trace, replay
from specds.drafters import open_drafter
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


def test_random_weights_give_finite_logits_in_the_asked_precision_and_the_same_in_every_run():
    ids = torch.arange(20)[None]
    with torch.inference_mode():
        for dtype in ("float32", "bfloat16"):
            first, second = (random_model("tiny", dtype=dtype)(ids).logits for _ in range(2))
            assert first.dtype == getattr(torch, dtype)
            assert torch.equal(first, second)
            assert first.isfinite().all()
            assert first.float().std() > 0


def test_what_is_no_weight_is_as_the_library_makes_it():
    from transformers import AutoModelForCausalLM

    expected = dict(AutoModelForCausalLM.from_config(config_of("tiny")).named_buffers())
    buffers = dict(random_model("tiny").named_buffers())
    assert buffers.keys() == expected.keys()
    for name, buffer in buffers.items():
        assert torch.equal(buffer, expected[name])


# Requests.


sizes = st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 5)), min_size=1, max_size=12)


@patient
@given(sizes, st.integers(1, 4))
def test_batches_are_full_calls_of_one_group_and_as_long_as_their_shortest(asked, size):
    requests = [Request(source, [1], most) for source, most in sorted(asked)]
    groups = {source: sum(r.source == source for r in requests) for source, _ in asked}
    if min(groups.values()) < size:
        with pytest.raises(ValueError, match="smaller --batch"):
            batches(requests, size)
        return
    made = batches(requests, size)
    for batch in made:
        assert len(batch.requests) == size
        assert {request.source for request in batch.requests} == {batch.source}
        assert batch.num_tokens == min(request.num_tokens for request in batch.requests)
    for source, count in groups.items():
        assert sum(batch.source == source for batch in made) == count // size
    if size == 1:
        assert [batch.requests[0] for batch in made] == requests


def test_answers_are_forced_whole_or_cut():
    recorded = [transcript([1, 2], [3, 4, 5])]
    (whole,) = requests_of(recorded, forced=True, max_new_tokens=None)
    (cut,) = requests_of(recorded, forced=True, max_new_tokens=2)
    (own,) = requests_of(recorded, forced=False, max_new_tokens=None)
    assert (whole.answer_ids, whole.num_tokens) == ([3, 4, 5], 3)
    assert (cut.answer_ids, cut.num_tokens) == ([3, 4], 2)
    assert (own.answer_ids, own.num_tokens) == (None, 128)


# The clock.


class FakeClock:
    """Time that passes only in ways."""

    now = 0.0

    def __call__(self):
        return self.now


class FakeWay:
    """Takes a second to begin and so many a token; later runs take `drift` as long."""

    def __init__(self, clock, seconds, text=(7, 8, 9, 10), error=None, drift=2.0):
        self.clock, self.seconds, self.text, self.error = clock, seconds, text, error
        self.drift, self.starts, self.whole_calls = drift, 0, 0

    def start(self):
        self.starts += 1
        return self.call

    def call(self, job):
        if self.error:
            raise self.error
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
    monkeypatch.setattr(measure, "perf_counter", clock)
    return clock


@pytest.fixture(scope="module")
def tiny():
    return random_model("tiny")


def plan(model, ways, *, runs=2, warm_memory=True, forced=False, sources="aa"):
    requests = [Request(source, [1, 2], 4, [7, 8, 9, 10]) for source in sources]
    target = Target.of(model, "auto", forced=forced)
    modes = [Mode("greedy", GREEDY)]
    return Plan(target, ways, modes, {1: batches(requests, 1)}, runs, 0, warm_memory)


def test_figures_are_those_of_the_clock(clock, tiny):
    ways = [
        Way("generate", FakeWay(clock, 3).start, Baseline.GENERATE),
        Way("plain", FakeWay(clock, 2).start, Baseline.PLAIN),
        Way("transformers-prompt-lookup", FakeWay(clock, 0.1).start, Baseline.PROMPT_LOOKUP),
        Way("fused", FakeWay(clock, 1, drift=1).start, budget=8),
    ]
    rows = {row["name"]: row for row in rows_of(measure.measure(plan(tiny, ways)))}
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


def test_where_reading_the_clock_costs_time_goes_into_a_pass_of_its_own(clock, tiny, monkeypatch):
    monkeypatch.setattr(Plan, "profiles", 1)
    profiled = []

    def start(baseline):
        def call(job):
            profiled.append((baseline, job.profile))
            clock.now += 100 if job.profile else 1
            stats = GenerationStats(num_drafts=1, forward_s=1 + job.profile, total_s=4)
            return Result([[7, 8, 9, 10]], stats if baseline is None else None)

        return call

    ways = [
        Way("generate", partial(start, Baseline.GENERATE), Baseline.GENERATE),
        Way("fused", partial(start, None)),
    ]
    told, planned = [], plan(tiny, ways, runs=1)
    generate, fused = rows_of(measure.measure(planned, told.append))
    assert (generate["shares"], fused["shares"]["forward"]) == (None, 2 / 4)
    assert fused["tokens_per_s"] == 4
    assert fused["num_drafts"] == 2
    assert [asked for asked in profiled if asked[1]] == [(None, True)] * 2
    assert len(told) == planned.num_calls


def test_on_a_device_that_records_our_loop_does_all_calls_before_it_is_timed(tiny, monkeypatch):
    ways = [Way(b.value, lambda: None, b) for b in (Baseline.GENERATE, Baseline.PLAIN)]
    requests = [Request("a", [1] * size, 4) for size in (3, 9, 5, 7)]
    planned, calls = plan(tiny, ways), batches(requests, 1)
    for records, of_our_loop in ((0, [13, 7]), (1, [13, 11, 9, 7])):
        monkeypatch.setattr(Plan, "profiles", records)
        library, own = (planned.warming(way, calls) for way in ways)
        assert [batch.length for batch in library] == [13, 7]
        assert [batch.length for batch in own] == of_our_loop


def test_a_drafter_is_new_in_every_run_and_for_every_request_where_memory_is_cold(clock, tiny):
    for warm_memory, expected in ((True, 2), (False, 2 * 2)):
        fake = FakeWay(clock, 1)
        cells = measure.measure(plan(tiny, [Way("fused", fake.start)], warm_memory=warm_memory))
        # One more to warm up, and one for each call that tells the time to the first token.
        assert fake.starts == expected + 1 + 4
        assert [len(cell.runs) for cell in cells] == [2]


def test_what_cannot_be_run_is_told_and_the_rest_is_measured(clock, tiny):
    broken = FakeWay(clock, 1, error=ValueError("no such\n cache"))
    ways = [
        Way("static", broken.start, Baseline.STATIC),
        Way("plain", FakeWay(clock, 2).start, Baseline.PLAIN),
    ]
    refused, plain = rows_of(measure.measure(plan(tiny, ways)))
    assert (refused["status"], refused["reason"]) == ("refused", "no such cache")
    about = {"transcripts", "mode", "batch", "name", "kind", "status", "reason"}
    assert {key for key, value in refused.items() if value is not None} <= about | {"fastest_plain"}
    assert (plain["status"], plain["fastest_plain"]) == ("ok", "plain")
    assert refused.keys() == plain.keys()


def test_groups_are_told_apart_and_added_up(clock, tiny):
    ways = [Way("plain", FakeWay(clock, 2, drift=1).start, Baseline.PLAIN)]
    told = []
    planned = plan(tiny, ways, sources="aab", runs=3)
    rows = rows_of(measure.measure(planned, told.append))
    assert [(r["transcripts"], r["num_tokens"]) for r in rows] == [("a", 8), ("b", 4), ("all", 12)]
    assert [r["tokens_per_s"] for r in rows] == pytest.approx([4 / 7] * 3)
    assert len(told) == planned.num_calls


def test_a_text_that_differs_is_told_with_its_place_and_margin(clock, tiny):
    ways = [
        Way("generate", FakeWay(clock, 1).start, Baseline.GENERATE),
        Way("fused", FakeWay(clock, 1, text=(7, 8, 0, 0)).start),
    ]
    same, other = rows_of(measure.measure(plan(tiny, ways)))
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


def test_a_text_that_ends_early_differs_where_it_ends(tiny):
    target = Target.of(tiny, "auto", forced=False)
    sampled = Mode("sampled", {"do_sample": True})
    assert measure.divergence(target, sampled, [1], [5, 6], [5, 6, 7]) == (2, None)


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
    drafter, trace = open_drafter(name, files / "code.specds"), Trace()
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


# A pass by its nodes.


def test_passes_are_timed_at_every_size_and_context(tiny):
    told = []
    target = Target.of(tiny, "auto", forced=True)
    rows = curve.verification_costs(target, [5, 70], [4, 1, 4], told.append)
    assert [(row["context"], row["num_nodes"]) for row in rows] == [
        *((5, 0), (5, 1), (5, 4)),
        *((70, 0), (70, 1), (70, 4)),
    ]
    assert len(told) == curve.num_passes([5, 70], [4, 1, 4])
    for plain, *passes in (rows[:3], rows[3:]):
        assert plain["ratio"] == 1
        for row in passes:
            assert row["ratio"] == row["seconds"] / plain["seconds"] > 0


# The command.


@pytest.fixture
def command(capsys, monkeypatch):
    """Runs `specds bench generate`: `command(*arguments) -> (exit code, stdout, stderr)`."""

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["specds", "bench", "generate", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        captured = capsys.readouterr()
        return stop.value.code, captured.out, captured.err

    return command


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
    assert {label(row, rows) for row in rows if row["kind"] == "drafter"} == {
        "rest, 2",
        "rest, auto",
    }
    assert [row["num_nodes"] for row in document["verification_costs"]] == [0, 2]
    parsed = Page(page.read_text(encoding="utf-8"))
    assert parsed.ids == ["speed-up", "time-shares", "pass-by-nodes", "speed-up-by-batch"]
    assert parsed.references == []
    assert "rest" in parsed.cells
    assert any("random weights of the shape tiny" in cell for cell in parsed.cells)


def test_the_command_prints_tables_for_people_and_keeps_the_text(command, files):
    code, out, err = command(
        *("--model", "demo-tiny", "--transcripts", files / "one.jsonl", "--drafter", "fused"),
        *("--datastore", files / "code.specds", "--device", "cpu", "--runs", "1", "--limit", "1"),
        *("--max-new-tokens", "8", "--context", "none", "--baseline", "generate,static"),
    )
    assert (code, "altered" in err) == (0, False)
    words = " ".join(out.split())
    for expected in ("one, greedy", "one, sampled", "Shares of time", "speed-up", "one run"):
        assert expected in words
    assert "A pass by its nodes" not in words


def test_the_demo_needs_neither_transcripts_nor_a_datastore(monkeypatch, files, demo_tokenizer):
    class Report:
        path = str(files / "code.specds")

    monkeypatch.setattr(run, "build_stdlib", lambda *_: Report)
    document = run_generate(
        GenerateOptions(
            model="demo",
            drafters=["rest"],
            baselines=["generate"],
            modes=["greedy"],
            limit=1,
            max_new_tokens=4,
            runs=1,
            contexts=(),
            device="cpu",
        )
    )
    generate, rest = document["rows"]
    assert (generate["transcripts"], generate["mode"]) == ("held-out", "greedy")
    assert rest["datastore"] == Report.path
    assert rest["num_differing"] == 0


def test_a_changed_text_fails_the_command(command, files, monkeypatch):
    changed = {"kind": "drafter", "num_differing": 1, "mode": "forced"}
    monkeypatch.setattr(run, "altered", lambda _: [changed])
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
    for arguments, message, expected in (
        ((*one,), "no target: give a model by --model", 1),
        ((*one, *tiny, "--model", "demo-tiny"), "no target: give a model by --model", 1),
        ((*one, "--shape", "tiny"), "add --forced", 1),
        ((*one, "--forced", "--shape", "huge", *demo), "no shape `huge`: choose of llama-2-7b", 1),
        ((*one, "--forced", "--shape", "tiny"), "no tokenizer", 1),
        ((*one, "--forced", "--shape", "small", *demo), "the model has 5", 1),
        (("--model", "demo-tiny"), "no prompts", 1),
        (("--model", "demo", "--forced"), "no answers to force", 1),
        ((*one, *tiny, "--runs", "0"), "runs must be at least 1, got 0", 1),
        ((*one, *tiny, "--batch", "0"), "a batch must hold at least 1 prompt, got 0", 1),
        ((*one, *tiny, "--batch", "3"), "make no batch of 3", 1),
        ((*one, *tiny, "--batch", "many"), "`many` is no size", 2),
        ((*one, *tiny, "--budget", "8,x"), "budget `x` is no number of nodes", 2),
        ((*one, *tiny, "--drafter", "rest"), "drafter `rest` needs a datastore", 1),
        ((*one, *tiny, "--drafter", "best"), "no drafter `best`: choose of fused", 1),
        ((*one, *tiny, "--baseline", "best"), "no baseline `best`: choose of generate", 1),
        ((*one, *tiny, "--modes", "best"), "no mode `best`: choose of greedy, sampled", 1),
        ((*one, *tiny, "--modes", ","), "no mode: choose of greedy, sampled", 1),
        ((*one, *tiny, "--verification", "best"), "verification must be", 1),
        ((*one, *tiny, "--dtype", "best"), "no dtype `best`", 1),
        ((*one, files / "one.jsonl", *tiny), "rename those that share a name", 1),
        ((*tiny, "--transcripts", files / "none.jsonl"), "no such file", 1),
    ):
        code, out, err = command(*arguments)
        assert (code, out) == (expected, ""), message
        assert message in err
        assert len(err.strip().splitlines()) == 1


# What a GPU is held to.


def test_the_gpu_benchmark_holds_each_figure_against_its_bar(files, tmp_path, capsys):
    case = ("--case", files / "one.jsonl", files / "code.specds")
    small = ("--shape", "tiny", "--device", "cpu", "--without-tests", "--out", tmp_path / "gpu")
    few = ("--new-tokens", 6, "--runs", 1, "--batches", 2, "--contexts", 16, "--limit", 1)
    # No drafts are a thousand times as fast.
    assert gpu.main([*map(str, (*case, 1000, *small, *few))]) == 1
    assert "missed" in capsys.readouterr().out
    written = json.loads((tmp_path / "gpu.json").read_text())
    met = {figure["name"]: figure["met"] for figure in written["figures"]}
    assert met["one, fused: speed-up"] is False
    assert met["one.jsonl: rows not as recorded"] is True
    assert met["one, fused: tokens a forward"] is None
    assert met["one, fused, batch 2: speed-up"] in (True, False)
    assert "pass over 64 nodes over a plain one, 16 tokens before" in met
    assert Page((tmp_path / "gpu.html").read_text(encoding="utf-8")).ids[0] == "speed-up"


def installed(package, version=importlib.metadata.version):
    """The version of a package, on a machine where specds is taken from its sources."""
    if package == "specds":
        raise importlib.metadata.PackageNotFoundError(package)
    return version(package)


def test_what_the_gpu_benchmark_has_measured_is_kept_when_the_rest_fails(
    files, tmp_path, capsys, monkeypatch
):
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    monkeypatch.setattr(run, "version", installed)
    case = ("--case", files / "one.jsonl", files / "code.specds", 0)
    small = ("--shape", "tiny", "--device", "cpu", "--without-tests", "--out", tmp_path / "gpu")
    few = ("--new-tokens", 6, "--runs", 1, "--limit", 1, "--batches", 99, "--baselines", "plain")
    with pytest.raises(ValueError, match="make no batch of 99"):
        gpu.main([*map(str, (*case, *small, *few, "--contexts"))])
    (document,) = json.loads((tmp_path / "gpu.json").read_text())["cases"]
    assert [row["name"] for row in document["rows"]] == ["plain", "fused"]
    assert document["verification_costs"] == []
    assert "tokens a forward" in capsys.readouterr().out
    assert not (tmp_path / "gpu.html").exists()


def test_a_batch_that_cannot_be_drafted_for_misses_nothing_but_says_why():
    row = {"kind": "drafter", "transcripts": "a", "name": "fused", "batch": 4, "mode": "forced"}
    row |= {"speed_up": None, "reason": "one at a time", "num_differing": None}
    case = gpu.Case(Path("a.jsonl"), Path("a.specds"), 2.6)
    speed, _ = gpu.speed_figures({"rows": [row], "dtype": "bfloat16"}, case)
    assert (speed.name, speed.met, speed.note) == (
        "a, fused, batch 4: speed-up",
        None,
        "one at a time",
    )
    row |= {"speed_up": 0.97, "reason": None, "fastest_plain": "compiled"}
    slow, _ = gpu.speed_figures({"rows": [row], "dtype": "bfloat16"}, case)
    assert (slow.met, slow.at_least) == (False, 0.98)


def test_the_gpu_benchmark_says_what_is_missing_without_a_gpu(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main(["--case", "a.jsonl", "a.specds", "2.6"]) == 1
    assert "no CUDA device" in " ".join(capsys.readouterr().err.split())


def test_a_page_without_the_plotting_library_is_refused_first(command, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    code, _, err = command("--model", "demo", "--html", tmp_path / "report.html")
    assert code == 1
    assert "pip install 'specds[bench]'" in err
