"""The adapters against fakes of the shapes that engines give; engines themselves run by make."""

import logging
import shutil
import subprocess
import sys
import time
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

from datastores import build, until
from specds.drafters import Memory
from specds.integrations import llama_cpp, sglang, vllm, vllm_plugin, vllm_v2
from specds.integrations.adapter import Adapter, IncompatibleError, parse_request_options
from vllm_shapes import TEXT, WHOLE, config_of, runner_of, step_of


class StubRunner:
    """vLLM's batch: padded arrays whose rows are reused, in the dtypes of its runner."""

    def __init__(self, max_num_seqs=64, max_model_len=32):
        self.tokens = np.full((max_num_seqs, max_model_len), 7, np.int32)
        self.lengths = np.full(max_num_seqs, 9, np.int32)

    def step(self, proposer, rows, names="abc"):
        """Each row: its tokens, and how many of them are of this step."""
        proposer.runner = runner_of([*names[: len(rows)]])
        sampled = []
        for index, (text, number) in enumerate(rows):
            self.tokens[index, : len(text)] = text
            self.lengths[index] = len(text)
            sampled.append(text[len(text) - number :])
        return proposer.propose(sampled, self.lengths, self.tokens, slot_mappings=None)


def test_vllm_receives_chains_for_moving_rows():
    proposer, runner = vllm.Proposer(config_of(**WHOLE)), StubRunner()
    drafts = runner.step(proposer, [([5, *TEXT], 1), ([6, *TEXT, 4], 1), ([9, 9, 9], 0)])
    assert drafts[0] == [3, 1, 2, 3]
    assert drafts[2] == []  # its prompt is being read
    assert all(type(token) is int for draft in drafts for token in draft)
    # The first one ends, the second moves up, the third is done with its prompt.
    drafts = runner.step(proposer, [([6, *TEXT, 4, 1, 2], 2), ([9, 9, 9, 9], 1)], "bc")
    assert drafts[0][:2] == [3, 1]
    assert drafts[1] == [9, 9, 9, 9]
    stats = proposer.drafter.stats()
    assert (stats["num_opened"], stats["num_moved"]) == (3, 1)
    assert proposer.num_failures == 0


def test_new_weights_reset_what_was_learned_before_the_next_draft(monkeypatch):
    proposer, runner = vllm.Proposer(config_of(times_steps=True)), StubRunner()
    monkeypatch.setattr(proposer, "drafter", drafter := MagicMock(wraps=proposer.drafter))
    loaded = []
    model = SimpleNamespace(load_weights=loaded.append)
    proposer.load_model(model)
    runner.step(proposer, [(TEXT, 1)])
    for weights in ("a", "b", "c"):
        model.load_weights(weights)
    assert loaded == ["a", "b", "c"]
    assert not drafter.reset_acceptance.called
    for length in (2, 3):
        runner.step(proposer, [([*TEXT, *TEXT[:length]], 1)])
        drafter.reset_acceptance.assert_called_once_with()
    # The first step of the new weights began before them.
    assert drafter.observe_step_time.call_count == 1


def test_vllm_drafts_end_at_the_model_length():
    proposer, runner = (
        vllm.Proposer(config_of(**WHOLE, max_model_len=12)),
        StubRunner(max_model_len=12),
    )
    lengths = []
    for end in (8, 9, 10, 11, 12):
        [draft] = runner.step(proposer, [((TEXT * 2)[:end], 1)])
        lengths.append(len(draft))
    assert lengths == [3, 2, 1, 0, 0]


def test_vllm_drafts_end_at_the_limit_of_their_request():
    adapter = vllm.VllmAdapter(config_of(max_model_len=32))
    for name, most in {"a": 6, "b": None, "c": 90}.items():
        adapter.begin_request(name, SimpleNamespace(extra_args=None, max_tokens=most), TEXT)
    adapter.begin_request("d", None, TEXT)
    lengths = [10, 10, 10, 10]
    assert adapter.num_left([*"abcd"], lengths) == [4, 22, 22, 22]
    adapter.begin_request("a", SimpleNamespace(extra_args=None, max_tokens=1), TEXT)
    assert adapter.num_left("a", [9]) == [0]
    adapter.end_requests("a")
    assert adapter.num_left("a", [9]) == [23]


def test_failing_drafter_is_logged_at_growing_intervals(caplog):
    proposer, runner = vllm.Proposer(config_of(**WHOLE)), StubRunner()
    proposer.runner = runner_of([*"ab"])
    with caplog.at_level(logging.ERROR):
        for garbage in (None, np.zeros(3), "tokens") * 3:
            assert proposer.propose([[1], [2]], runner.lengths, garbage) == [[], []]
    assert proposer.num_failures == 9
    told = [record.getMessage().rpartition(" ")[2] for record in caplog.records]
    assert told == ["1", "2", "4", "8"]
    runner.tokens[:] = -5
    assert proposer.propose([[1]], runner.lengths, runner.tokens) == [[]]
    assert runner.step(proposer, [(TEXT, 1)]) == [[3, 1, 2, 3]]


def test_metrics_that_cannot_be_written_fail_alone(caplog, monkeypatch):
    def publish(*_):
        raise FileNotFoundError("PROMETHEUS_MULTIPROC_DIR")

    monkeypatch.setattr("specds.integrations.adapter.publish", publish)
    proposer, runner = vllm.Proposer(config_of(**WHOLE)), StubRunner()
    with caplog.at_level(logging.ERROR):
        for _ in range(5):
            assert runner.step(proposer, [(TEXT, 1)]) == [[3, 1, 2, 3]]
    assert proposer.num_failures == 0
    told = [record.getMessage() for record in caplog.records]
    assert told == [f"specds published no metrics: failure {number}" for number in (1, 2, 4)]


def test_drafts_depend_on_step_times_or_min_prob():
    def drafts(times_steps, **options):
        adapter = Adapter(options, 4, times_steps=times_steps)
        adapter.drafter.sync([TEXT], ["a"])
        return adapter.chains([32])

    assert drafts(True) == [[]]
    assert drafts(False) == [[3, 1, 2, 3]]
    assert drafts(True, min_prob=1.0, step_cost="ignored") == drafts(False, min_prob=1.0) == [[]]


@pytest.mark.parametrize("num_cpu_threads", [None, 2])
def test_steps_on_a_cpu_are_timed_without_what_other_programs_take(num_cpu_threads):
    adapter = Adapter({}, 4, times_steps=True, num_cpu_threads=num_cpu_threads)
    adapter.drafter = drafter = MagicMock(wraps=adapter.drafter)
    for length in (7, 8, 9):
        adapter.sync([[*TEXT, 3][:length]], ["a"])
        with adapter.timed_draft():
            adapter.chains([32])
        time.sleep(0.05)
    times = [call.args[0] for call in drafter.observe_step_time.call_args_list]
    assert {each >= 0.05 for each in times} == {num_cpu_threads is None}


def test_start_logs_the_configuration_and_ineffective_options(tmp_path, caplog):
    store = build(tmp_path / "d", [[1, 2]])
    options = {"datastore": str(store.path), "memory_scope": "tenant", "min_prob": 0.2}
    with caplog.at_level(logging.INFO):
        llama_cpp.DraftModel(options, 7)
        vllm.Proposer(config_of(memory_scope="tenant", k=20))
    told, no_tenants, _, waits = (record.getMessage() for record in caplog.records)
    assert f"at most 7 tokens per row: EngineDrafter({store.path} (build " in told
    for part in ("3 tokens)", '"memory_scope":"tenant"', '"effort":"auto"', '"min_prob":0.2'):
        assert part in told
    assert "reports no tenants" in no_tenants
    assert "8 rows with drafts has 168 tokens: raise max_num_batched_tokens above 64" in waits


@pytest.mark.parametrize(
    ("extra", "options"),
    [
        (None, {}),
        ({"off": 1, "tenant": "ann", "group": "x"}, {}),  # of another plug-in
        ({"specds_off": 1, "specds_tenant": "ann"}, None),
        ({"specds_off": "True"}, None),
        ({"specds_off": "1"}, None),
        ({"specds_off": "false", "specds_tenant": 5}, {"off": "false", "tenant": 5}),
        ({"specds_group": 3, "specds_off": None}, {"group": 3, "off": None}),
        ({"specds_predicted_output": [1, 2]}, {"predicted_output": [1, 2]}),
        ({"specds_tenant": True, "specds_off": "maybe"}, {"tenant": True, "off": "maybe"}),
    ],
)
def test_request_options_are_those_with_the_prefix(extra, options):
    assert parse_request_options(extra) == options


@pytest.mark.parametrize(
    ("sampling", "is_penalized"),
    [
        (None, False),
        ({"repetition_penalty": 1.0, "presence_penalty": 0.0, "allowed_token_ids": None}, False),
        ({"repetition_penalty": 1.3}, True),
        ({"presence_penalty": -0.5}, True),
        ({"frequency_penalty": 0.5}, True),
        ({"logit_bias": {3: 1.0}}, True),
        ({"bad_words": ["no"]}, True),
        ({"allowed_token_ids": [3]}, True),
    ],
)
def test_penalties_are_an_option_of_the_request(sampling, is_penalized):
    sampling = sampling and SimpleNamespace(**sampling)
    expected = {"penalized": True} if is_penalized else {}
    assert parse_request_options(None, sampling) == expected
    assert parse_request_options({"specds_off": True}, sampling) is None
    given = parse_request_options({"specds_penalized": False, "specds_tenant": "a"}, sampling)
    assert given == {"tenant": "a", "penalized": False}


def test_invalid_request_options_are_logged_and_counted_once_per_request(caplog):
    proposer, runner = vllm.Proposer(config_of(**WHOLE)), StubRunner()
    proposer.request_options = {"a": {"group": 0.5}, "b": {"tenat": "ann"}, "c": {}}
    for _ in range(3):
        drafts = runner.step(proposer, [([5, *TEXT], 1), ([6, *TEXT], 1), ([7, *TEXT], 1)])
    assert all(drafts)
    [record] = caplog.records
    assert "`group` must be a string or an integer" in record.getMessage()
    assert proposer.drafter.stats()["num_refused_options"] == 2


def test_vllm_that_hides_its_runner_or_requests_is_rejected():
    with pytest.raises(IncompatibleError, match=r"without calling .*propose_draft_token_ids"):
        vllm.Proposer(config_of()).propose([[1]], np.ones(8, np.int32), np.ones((8, 32), np.int32))
    torch = pytest.importorskip("torch")
    speculator = vllm_v2.ChainSpeculator(config_of(), torch.device("cpu"), None)
    with pytest.raises(IncompatibleError, match="vLLM passed no options of requests"):
        speculator.propose(*[None] * 8)
    step = step_of(begun={"a": {"specds_off": True}})
    del step.scheduled_new_reqs[0].sampling_params
    with pytest.raises(IncompatibleError, match="no attribute 'sampling_params'"):
        speculator.begin_step(step)


def test_sglang_that_hides_its_requests_is_rejected(monkeypatch):
    worker = SimpleNamespace(NGRAMWorker=SimpleNamespace())
    monkeypatch.setitem(sys.modules, "sglang.srt.speculative.ngram_worker", worker)
    with pytest.raises(IncompatibleError, match="_prepare_draft_tokens"):
        sglang._replacement()


def test_plug_ins_never_end_an_engine_that_lacks_names(caplog, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm.config", None)
    vllm_plugin.register()
    monkeypatch.setenv(sglang.CONFIG, "{}")
    monkeypatch.setitem(sys.modules, "sglang.srt.plugins.hook_registry", None)
    sglang.register()
    ours, theirs = (record.getMessage() for record in caplog.records)
    assert "lacks" in ours
    assert "VllmConfig" in ours
    assert "hook_registry" in theirs


def test_configuration_is_checked_at_start(tmp_path):
    with pytest.raises(ValueError, match="unknown field `min_probability`"):
        vllm.Proposer(config_of(min_probability=0.1))
    with pytest.raises(ValueError, match="SGLang does not support `step_cost`"):
        sglang.SpecdsCorpus({"step_cost": "measured"}, 8)
    with pytest.raises(ValueError, match="verify as chains with --speculative-ngram-max-bfs"):
        sglang._replacement(max_bfs_breadth=1)
    store = build(tmp_path / "d", [[1, 2]], tokenizer_fingerprint="xxh3:ours")
    with pytest.raises(ValueError, match="xxh3:ours, that of the engine is "):
        llama_cpp.DraftModel({"datastore": str(store.path)}, tokenizer="demo")


def test_damaged_snapshot_is_logged_and_drafting_continues(tmp_path, caplog):
    (tmp_path / "kept").write_bytes(b"damaged")
    settings = {**WHOLE, "snapshot": str(tmp_path / "kept"), "memory_scope": "shared"}
    model = llama_cpp.DraftModel(settings, vocab_size=10)
    assert "the snapshot is not used" in caplog.text
    assert model(np.array(TEXT, np.intc)).tolist() == [3, 1, 2, 3, 1, 2, 3, 1]


def test_failed_sharing_is_logged_at_growing_intervals(tmp_path, caplog):
    path = tmp_path / "memory"
    config = {"memory_scope": "shared", "snapshot": str(path), "sync_interval": 0.02}
    model = llama_cpp.DraftModel(config, vocab_size=10)
    shutil.rmtree(path)
    path.mkdir()
    (path / "of another program").touch()
    num_failures = lambda: model.drafter.stats()["num_memory_failures"]  # noqa: E731
    for at_least in (1, 2, 4, 8):
        until(lambda at_least=at_least: num_failures() >= at_least)
        model(np.array(TEXT, np.intc))
    told = [record.getMessage() for record in caplog.records]
    assert 2 <= len(told) <= 4
    assert all("the memory was not shared" in line and str(path) in line for line in told)
    model(np.array(TEXT, np.intc))
    assert len(caplog.records) <= 5, "not at each step"


WORKER = """
import sys
import numpy as np
from specds.integrations.llama_cpp import DraftModel
config = {"memory_scope": "shared", "snapshot": sys.argv[1], "sync_interval": 3600}
keeps = [DraftModel(config, vocab_size=100)]
keeps.append(keeps)
keeps[0](np.arange(40, dtype=np.intc))
"""


def run_worker(*arguments):
    command = [sys.executable, "-c", WORKER, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=40, check=True).stderr


def test_worker_saves_its_requests_at_exit(tmp_path):
    assert run_worker(tmp_path / "memory") == ""
    assert [len(text) for text in Memory.open(tmp_path / "memory", 100).texts("")] == [40]


def test_llama_cpp_receives_arrays_of_its_own_type():
    model = llama_cpp.DraftModel(WHOLE, 3, max_length=len(TEXT) + 4)
    buffer = np.array([*TEXT, 3, 1, 2, 3], np.intc)
    draft = model(buffer[: len(TEXT)], any_keyword=1)
    assert draft.dtype == np.intc
    assert draft.tolist() == [3, 1, 2]
    assert model(buffer[: len(TEXT) + 2]).tolist() == [2]
    assert model(buffer).tolist() == []
    assert model(np.zeros(0, np.intc)).tolist() == []
    assert model(None).tolist() == []
    assert model.num_failures == 1
    assert model.drafter.stats()["num_opened"] == 1


@pytest.mark.parametrize(("memory_scope", "is_remembered"), [("tenant", False), ("shared", True)])
def test_tenant_memory_stays_empty_without_tenants(memory_scope, is_remembered):
    first, second = [*range(30)], [35, 3, 4]

    def by_vllm(text):
        return StubRunner().step(proposer, [(text, 1)])[0]

    def by_sglang(text):
        return corpus.batch_get([str(len(text))], [text], [len(text)])[0].tolist()

    def by_llama(text):
        return model(np.array(text, np.intc)).tolist()

    options, size = {"memory_scope": memory_scope}, {"vocab_size": 40}
    proposer = vllm.Proposer(config_of(**WHOLE, **options))
    corpus = sglang.SpecdsCorpus(options, 4, **size)
    model = llama_cpp.DraftModel({**WHOLE, **options}, 4, **size)
    rows = {by_vllm: proposer, by_sglang: corpus, by_llama: model}
    for draft, adapter in rows.items():
        draft(first)
        adapter.drafter.end_all()
        assert (5 in draft(second)) == is_remembered
        assert adapter.num_failures == 0


def links(mask):
    """Return the parent of each node, its deepest ancestor by the mask."""
    depths = mask.sum(axis=1)
    parents = []
    for node in range(len(mask)):
        above = [other for other in range(len(mask)) if mask[node, other] and other != node]
        parents.append(max(above, key=lambda other: depths[other], default=-1))
    return parents


def check_tree(context, tree, mask):
    """It is a tree below the last token whose nodes follow their parents, by the mask alone."""
    parents = links(mask)
    assert tree[0] == context[-1]
    assert parents[0] == -1
    assert (tree >= 0).all()
    for node in range(1, len(tree)):
        assert 0 <= parents[node] < node
        row = mask[parents[node]].copy()
        row[node] = 1
        assert mask[node].tolist() == row.tolist()
    edges = list(zip(parents, tree.tolist(), strict=True))
    assert len(set(edges)) == len(edges)


def test_sglang_continues_restarted_requests_and_short_windows():
    corpus = sglang.SpecdsCorpus({}, 5)
    whole = sglang.SpecdsCorpus({}, 5)
    for end in range(4, 9):
        tree, mask = corpus.batch_get(["a"], [TEXT[:end][-4:]], [end])
        assert tree.tolist() == whole.batch_get(["a"], [TEXT[:end]], [end])[0].tolist()
        assert (tree.dtype, mask.dtype) == (np.int64, np.bool_)
        check_tree(TEXT[:end], tree, mask.reshape(5, 5))
    assert corpus.drafter.stats()["num_opened"] == 1
    request = SimpleNamespace(rid="a")
    assert corpus.begin([request]) == 5
    corpus.batch_get(["a"], [TEXT[:3]], [3])  # retracted, and begun again
    assert corpus.drafter.stats()["num_opened"] == 2
    corpus.batch_get(["a"], [TEXT[-3:]], [3 + 40])  # more tokens are new than were passed
    assert corpus.drafter.stats()["num_opened"] == 3
    assert corpus.num_failures == 0
    token_ids, mask = corpus.batch_get(["a", "b"], [[2], [3]], None)
    assert corpus.num_failures == 1
    for last, tree, tree_mask in zip(
        (2, 3), token_ids.reshape(2, 5), mask.reshape(2, 5, 5), strict=True
    ):
        check_tree([last], tree, tree_mask)
    corpus.erase_match_state(["b"])
    assert corpus.begin([request]) == 5
    corpus.batch_get(["a"], [TEXT[:3]], [3])
    params = SimpleNamespace(custom_params={"specds_tenant": "other"})
    again = SimpleNamespace(rid="a", sampling_params=params)
    # A new request has the name of the last one.
    assert corpus.begin([again]) > 5
    assert (corpus.request_options["a"], len(corpus.drafter)) == ({"tenant": "other"}, 0)
    corpus.reset()
    assert len(corpus.drafter) == 0


def test_sglang_reports_the_target_s_predictions():
    torch = pytest.importorskip("torch")
    corpus = sglang.SpecdsCorpus({"recycle_predictions": True}, 4)
    corpus.batch_get(["a"], [[1, 2]], [2])
    logits = torch.zeros(4, 60)
    logits[0, [40, 41]] = 1.0
    corpus.observe_logits(logits)
    trees = corpus.batch_get(["a"], [[1, 2, 9, 2]], [4])[0]
    assert {40, 41} & set(trees.tolist())


def test_check_reports_missing_names_of_the_engine(monkeypatch):
    check = [sys.executable, "-m", "specds.integrations.sglang", "--check"]
    run = subprocess.run(check, capture_output=True, text=True, check=False)
    lacks = sglang.missing()
    assert run.returncode == (1 if lacks else 0)
    assert ("sglang.srt.speculative.ngram_worker:NGRAMWorker" in run.stderr) == bool(lacks)
    monkeypatch.delenv(sglang.CONFIG, raising=False)
    sglang.register()  # without a configuration the engine is not asked for


@pytest.mark.parametrize(
    ("release", "is_cpu", "kind", "architecture", "reason"),
    [
        ("0.32.1", False, "is_hybrid", "Qwen3NextForCausalLM", None),
        ("0.32.1", True, "is_hybrid", "Qwen3NextForCausalLM", "vLLM on a CPU"),
        ("0.31.0", False, "is_hybrid", "Qwen3NextForCausalLM", "vLLM before 0.32"),
        ("0.32.1", False, "is_hybrid", "JambaForCausalLM", "Mamba 1 layers"),
        ("0.32.1", False, "is_attention_free", "Mamba2ForCausalLM", "has no attention"),
        ("0.31.0", True, "is_dense", "LlamaForCausalLM", None),
    ],
)
def test_vllm_models_without_rollback_are_rejected_by_name(
    monkeypatch, release, is_cpu, kind, architecture, reason
):
    platform = SimpleNamespace(is_cpu=lambda: is_cpu)
    platforms = SimpleNamespace(current_platform=platform)
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__=release))
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    model = SimpleNamespace(model="org/name", architectures=[architecture], **{kind: True})
    if reason is None:
        vllm.require_rollback(model)
    else:
        with pytest.raises(ValueError, match=f"for org/name: .*{reason}.*; start vLLM without"):
            vllm.require_rollback(model)
