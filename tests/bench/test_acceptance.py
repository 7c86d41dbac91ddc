"""Replays: the loop against a naive one, what is read, and what is reported."""

import csv
import json
from dataclasses import replace
from functools import partial
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models import Drafter, random_tree
from replays import build_tiny, code_answers, transcript
from specds import FusedDrafter
from specds.bench.acceptance.measure import replay, replay_all, suggestion
from specds.bench.acceptance.report import figures
from specds.bench.plot import Bar, bar_chart
from specds.drafters import DrafterInputs, Memory, TokenTree, maker_of
from specds.papers import RestDrafter

tokens = st.integers(0, 3)
texts = st.lists(tokens, min_size=1, max_size=20)


@pytest.fixture(scope="module")
def datastore(tmp_path_factory):
    return build_tiny(tmp_path_factory.mktemp("replay") / "tiny.specds")


def chain(token_ids):
    """A path of which each node is as likely as not."""
    return TokenTree(token_ids, list(range(-1, len(token_ids) - 1)), [0.5] * len(token_ids))


# The loop.


def naive_replay(drafter, prompt, completion, max_nodes):
    """The accepted tokens and the nodes of each step."""
    session, rest, steps = drafter.session(prompt), list(completion), []
    while rest:
        paths = []
        if len(rest) > 1:
            tree = session.draft(max_nodes, len(rest) - 1)
            for token, parent in zip(tree.token_ids.tolist(), tree.parents.tolist(), strict=True):
                paths.append([*(paths[parent] if parent >= 0 else []), token])
            paths = [path for path in paths if len(path) < len(rest)]
        accepted = max((len(path) for path in paths if path == rest[: len(path)]), default=0)
        steps.append((accepted, len(paths)))
        session.observe(rest[: accepted + 1])
        rest = rest[accepted + 1 :]
    return steps


@given(texts, texts, st.integers(1, 12), st.integers(0, 99))
def test_replay_matches_a_naive_loop(datastore, prompt, completion, max_nodes, seed):
    answer = transcript(prompt, completion)

    def random_trees(_):
        """Return a tree of any size, with deep and shallow nodes."""
        return Drafter(lambda _, at, n: random_tree(np.random.default_rng([seed, at]), n % 7, 4))

    # One for each replay: the fused drafter learns.
    for drafter in (RestDrafter, FusedDrafter, random_trees):
        one = drafter(datastore)
        trace = replay(one.session(prompt), answer, max_nodes)
        steps = naive_replay(drafter(datastore), prompt, completion, max_nodes)
        stats = trace.stats
        assert stats.num_drafts == len(steps)
        assert stats.num_accepted_tokens == sum(accepted for accepted, _ in steps)
        assert stats.num_draft_tokens == sum(nodes for _, nodes in steps)
        assert stats.num_emitted_tokens == len(completion)
        # Every token of the answer was accepted or is the target's own.
        assert stats.num_accepted_tokens + stats.num_drafts == len(completion)
        assert trace.sources["target"] == stats.num_drafts
        assert sum(trace.sources.values()) == len(completion)
        # At the last token there is nothing to gain, and nothing is drafted.
        asked = len(steps) - (steps[-1] == (0, 0) and len(trace.draft_ns) < len(steps))
        assert len(trace.draft_ns) == len(trace.accepted) == len(trace.expected) == asked
        assert len(trace.observe_ns) == len(steps)


def test_replay_of_known_drafter_has_known_acceptance():
    prompt, completion = [9], list(range(30))
    known = Drafter(lambda _, at, n: chain(completion[at - 1 :][:n]))
    trace = replay(known.session(prompt), transcript(prompt, completion), 5)
    row = figures(trace)
    assert row["num_drafts"] == 5
    assert row["mean_acceptance_length"] == 6
    assert row["nodes_per_draft"] == 5
    assert row["acceptance_by_position"] == [1, 1, 1, 1, 1]
    assert row["emitted_by_source"] == {"target": 5, "other": 25}
    assert (row["expected_accepted_tokens"], row["accepted_over_expected"]) == (12.5, 2)
    assert [session.finished for session in known.sessions] == [1]


def test_acceptance_is_counted_by_length_and_request():
    # Two samples of a prompt, then another prompt: each right about its first two tokens.
    completion = [0, 0, 0, 1, 1, 1, 0]
    drafter = Drafter(lambda *_: chain([0, 0, 0]))
    requests = [transcript([9] * length, completion) for length in (3, 3, 9)]
    traces = replay_all(lambda: drafter, 4, requests)
    row = figures(traces["a"])
    assert (row["num_drafts"], row["num_draft_tokens"]) == (3 * 4, 3 * (3 + 2 + 1 + 0))
    assert row["num_accepted_tokens_per_pos"] == [3, 3, 3]
    assert row["draft_acceptance_rate"] == 9 / 18
    assert row["interval"] == [row["mean_acceptance_length"]] * 2
    assert row["acceptance_by_sample"] == [
        {"sample": 0, "num_drafts": 6, "mean_acceptance_length": 2.0},
        {"sample": 1, "num_drafts": 3, "mean_acceptance_length": 2.0},
    ]
    assert [point["request"] for point in row["acceptance_by_request"]] == [0, 1, 2]
    assert row["accepted_prediction_tokens"] is row["rejected_prediction_tokens"] is None


def test_bootstrap_interval_covers_most_sample_means():
    few, many = [0, 1, 0, 1], [0] * 4
    answers = [transcript([9], few)] * 30 + [transcript([9], many)] * 10
    right = Drafter(lambda *_: chain([0, 0, 0]))
    row = figures(replay_all(lambda: right, 4, answers)["a"])
    # A share of 0.25 +- 0.07 takes one forward, the others two: 4 / (2 - share).
    low, high = row["interval"]
    assert 2.09 < low < 2.17 < row["mean_acceptance_length"] < 2.40 < high < 2.52
    assert figures(replay_all(lambda: right, 4, answers[:1])["a"])["interval"] is None


def test_predicted_output_is_drafted_and_counted():
    answer = [5, 6, 7, 8, 9, 10, 11, 12]
    expected = replace(transcript([1, 2], answer), predicted_ids=np.array([*answer, 30, 31]))
    memory = Memory(40)
    row = figures(replay_all(lambda: FusedDrafter(memory=memory), 4, [expected])["a"])
    accepted = row["accepted_prediction_tokens"]
    assert accepted == row["emitted_by_source"]["predicted_output"] > 3
    assert row["rejected_prediction_tokens"] == 10 - accepted


def recorded(num_right, length=4):
    """An answer, and a drafter that was right about this many tokens everywhere."""
    answer = list(range(5, 35))
    pairs = [(min(num_right, len(answer) - place), length) for place in range(len(answer))]
    return replace(transcript([1, 2], answer), suggested=pairs)


@pytest.mark.parametrize(("num_right", "expected"), [(0, 1), (1, 2), (4, 5)])
def test_recorded_drafter_alone_has_the_recorded_acceptance(num_right, expected):
    new = maker_of("suggested", DrafterInputs())
    trace = replay_all(new, 4, [recorded(num_right)])["a"]
    assert trace.stats.mean_acceptance_length == expected
    assert suggestion(recorded(2), 3) == [8, 9, 9, 10]


def test_recorded_drafter_is_an_additional_source():
    memory = Memory(40)
    alone = replay_all(lambda: FusedDrafter(), 4, [recorded(0)])["a"].stats
    joined = replay_all(lambda: FusedDrafter(memory=memory), 4, [recorded(3)])["a"]
    assert joined.stats.mean_acceptance_length > 3 > 1.5 > alone.mean_acceptance_length
    assert joined.sources["suggested"] > 10


def test_rows_of_a_request_group_share_drafts():
    def expected(groups):
        drafter = FusedDrafter(memory=Memory(64))
        answers = [transcript([60 + n], list(range(20))) for n in range(2)]
        rows = [replace(row, group=group) for row, group in zip(answers, groups, strict=True)]
        return replay_all(lambda: drafter, 8, rows)["a"].expected

    assert expected(["task", "task"]) != expected(["task", "other"])
    assert expected(["task", "other"]) == expected([None, None])


# The command.


@pytest.fixture(scope="module")
def files(tmp_path_factory, demo_tokenizer):
    """A folder with a datastore under two names and two files of transcripts."""
    folder = tmp_path_factory.mktemp("files")
    code_answers(folder, demo_tokenizer, one=(0,), two=(40,))
    (folder / "large.specds").symlink_to("code.specds")
    return folder


@pytest.fixture
def replay_command(run):
    return partial(run, "bench", "acceptance")


def test_csv_has_a_line_for_each_row(replay_command, files):
    options = ("--transcripts", files / "one.jsonl", "--datastore", files / "code.specds")
    code, out, _ = replay_command(*options, "--max-nodes", "4,8", "--csv")
    header, *lines = csv.reader(out.splitlines())
    assert code == 0
    assert {len(line) for line in lines} == {len(header)}
    assert {line[header.index("max_nodes")] for line in lines} == {"4", "8"}
    assert "acceptance_histogram" not in header


def test_plot_has_a_bar_for_each_row_as_wide_as_its_figure(replay_command, files, tmp_path):
    options = ("--transcripts", files / "one.jsonl", "--datastore", files / "code.specds")
    plot = tmp_path / "a.svg"
    code, out, _ = replay_command(*options, "--max-nodes", "4,8", "--json", "--plot", plot)
    assert code == 0
    figures = [row["mean_acceptance_length"] for row in json.loads(out)["rows"]]
    tags = [*ElementTree.parse(plot).iter()]
    widths = [float(tag.get("width")) for tag in tags if tag.get("class") == "bar"]
    assert np.allclose(np.divide(widths, max(widths)), np.divide(figures, max(figures)), atol=1e-3)
    texts = [tag.text for tag in tags if tag.tag.endswith("text")]
    assert texts[:3] == ["tokens per forward pass", "fused, 4", f"{figures[0]:.2f}"]
    assert [tag for tag in tags if tag.get("href")] == []


def test_plot_has_a_line_at_1_intervals_and_a_legend():
    bars = [Bar("]]>&", 2.0, (1.0, 4.0)), Bar("b", 0.5)]
    tags = [*ElementTree.fromstring(bar_chart("a<b", bars, "95 %")).iter()]
    by_class = {name: [tag for tag in tags if tag.get("class") == name] for name in ("bar", "one")}
    interval, _ = [tag for tag in tags if tag.get("class") == "interval"]
    zero = float(by_class["bar"][0].get("x"))
    scale = [float(interval.get(name)) - zero for name in ("x1", "x2")]
    assert scale[1] == pytest.approx(4 * scale[0], abs=1)
    # The end of an interval at 1 lies on the line at 1.
    assert by_class["one"][0].get("x1") == by_class["one"][0].get("x2") == interval.get("x1")
    texts = [tag.text for tag in tags if tag.tag.endswith("text")]
    assert texts == ["a<b", "]]>&", "2.00", "b", "0.50", "1.00: without drafts", "95 %"]
    assert all(float(tag.get("width", "0").rstrip("%")) >= 0 for tag in tags)


def test_failed_replay_leaves_no_plot(replay_command, files, tmp_path):
    plot, rows = tmp_path / "a.svg", tmp_path / "rows.jsonl"
    rows.write_text("{}\n")
    options = ("--transcripts", rows, "--datastore", files / "code.specds")
    code, _, err = replay_command(*options, "--plot", plot)
    assert (code, plot.exists()) == (1, False)
    assert "`prompt`" in err


def test_plot_of_another_kind_is_refused_before_the_replay(replay_command, files, tmp_path):
    plot = tmp_path / "a.png"
    code, _, err = replay_command("--transcripts", files / "one.jsonl", "--plot", plot)
    assert (code, plot.exists()) == (2, False)
    assert "plots are SVG files" in err


def test_command_prints_a_row_for_each_cell(replay_command, files):
    code, out, _ = replay_command(
        *("--transcripts", files / "one.jsonl", files / "two.jsonl"),
        *("--datastore", f"{files}/code.specds,{files}/large.specds"),
        *("--drafter", "fused,rest,prompt-lookup"),
        *("--max-nodes", "4,8", "--no-warm-memory", "--json"),
    )
    report = json.loads(out)
    assert code == 0
    about = {"warm_memory": False, "limit": None}
    assert about.items() <= report.items()
    assert report["memory_tokens"] == 0
    rows = report["rows"]
    totals = (row for row in rows if row["transcripts"] == "all")
    cells = [(row["drafter"], row["datastore"], row["max_nodes"]) for row in totals]
    # Prompt lookup takes no datastore.
    assert len(set(cells)) == len(cells) == 2 * (2 + 2 + 1)
    assert len(rows) == 3 * 2 * (2 + 2 + 1)
    for row in rows:
        assert row.keys() == rows[0].keys()
        assert row["num_drafts"] + row["num_accepted_tokens"] == row["num_emitted_tokens"]
    groups = [row["transcripts"] for row in rows]
    assert groups == sorted(groups, key=lambda name: (name == "all", name))


def test_table_shows_tokens_per_pass_first(replay_command, files):
    code, out, _ = replay_command(
        *("--transcripts", files / "one.jsonl"),
        *("--datastore", files / "code.specds", "--datastore", files / "large.specds"),
        *("--drafter", "rest", "--max-nodes", "4"),
    )
    assert code == 0
    heading, *rows = [line.split() for line in out.splitlines() if line.strip()][1:]
    assert heading[:3] == ["nodes", "of", "tokens"]
    found = {" ".join(row[:2]): row[2:] for row in rows if "," in row[0]}
    for name in ("rest, code.specds", "rest, large.specds"):
        assert found[name][1] == "4"
        assert float(found[name][2]) > 1
    assert "in file order" in out
