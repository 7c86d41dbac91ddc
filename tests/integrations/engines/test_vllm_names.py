"""The names of a real vLLM that the adapters use, each renamed: run by `make test-vllm`."""

import json
import re
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

pytest.importorskip("vllm", exc_type=ImportError)

from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.worker.gpu import model_runner, spec_decode

from engines import workload
from engines.vllm import chains, eagle, ngrams
from specds.indexing import DatastoreBuilder
from specds.integrations import vllm, vllm_combined, vllm_grammars, vllm_plugin
from specds.integrations.adapter import IncompatibleError, resolve
from vllm_shapes import config_of

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]

LOAD = f"{vllm_combined.HEADS}.load_model"
AT_START = [vllm_plugin.NEEDED[place] for place in (0, 1, 5)]
LATER = vllm_plugin.NEEDED[2:5]
FIELDS = [(name, field) for name, fields in vllm_plugin.FIELDS.items() for field in fields]
SAMPLING = [f"vllm.v1.sample.rejection_sampler:{name}" for name in vllm.SAMPLING]


def parts(name):
    """Return the object that has a name, and the name's last part."""
    owner, _, attribute = name.rpartition("." if "." in name.partition(":")[2] else ":")
    return resolve(owner), attribute


@pytest.fixture
def log(monkeypatch):
    """Return the log of the plug-in; what this replaces in vLLM comes back."""
    for name in (*AT_START, LOAD):
        owner, attribute = parts(name)
        monkeypatch.setattr(owner, attribute, getattr(owner, attribute))
    monkeypatch.setattr(vllm.VllmAdapter, "log", log := MagicMock())
    return log


def renamed(name, monkeypatch):
    owner, attribute = parts(name)
    monkeypatch.setattr(owner, f"new_{attribute}", getattr(owner, attribute), raising=False)
    monkeypatch.delattr(owner, attribute)


def warnings(log):
    return [str(call.args) for call in log.warning.call_args_list]


@pytest.mark.parametrize("name", [*AT_START, LOAD])
def test_vllm_starts_with_one_warning_if_a_name_moved(name, log, monkeypatch):
    renamed(name, monkeypatch)
    vllm_plugin.register()
    [warning] = warnings(log)
    assert name in warning


@pytest.mark.parametrize("name", LATER)
def test_vllm_uses_its_own_n_grams_with_one_warning_if_a_name_moved(name, log, monkeypatch):
    renamed(name, monkeypatch)
    its_own_n_grams_are_used(name, log, monkeypatch)


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_vllm_uses_its_own_n_grams_with_one_warning_if_a_field_moved(name, field, log, monkeypatch):
    monkeypatch.delitem(resolve(name).__dataclass_fields__, field)
    its_own_n_grams_are_used(f"{name}.{field}", log, monkeypatch)


@pytest.mark.parametrize("name", vllm_plugin.STATES)
def test_vllm_uses_its_own_n_grams_with_one_warning_if_a_state_moved(name, log, monkeypatch):
    on_gpu = SimpleNamespace(gpu=None)
    states = SimpleNamespace(all_token_ids=on_gpu, total_len=on_gpu, req_id_to_index={})
    delattr(states, name.partition(".")[0])
    its_own_n_grams_are_used(name, log, monkeypatch, states)


def test_vllm_uses_its_own_n_grams_with_one_warning_if_arguments_moved(log, monkeypatch):
    base = resolve(vllm_plugin.NEEDED[2])
    monkeypatch.setattr(base, "propose", lambda self, input_batch, last_sampled: None)
    its_own_n_grams_are_used("propose(input_batch, attn_metadata", log, monkeypatch)


def its_own_n_grams_are_used(name, log, monkeypatch, states=None):
    """Check that vLLM makes its own speculator, and one warning names what has moved."""
    monkeypatch.setattr(spec_decode, "init_speculator", lambda *_: "its own")
    vllm_plugin.register()
    config = config_of(is_async=True)
    config.speculative_config.method, config.use_v2_model_runner = "ngram_gpu", True
    assert spec_decode.init_speculator(config, None, states) == "its own"
    [warning] = warnings(log)
    assert name in warning


def test_runner_that_was_imported_before_calls_our_speculator(log, monkeypatch):
    monkeypatch.setattr(model_runner, "init_speculator", spec_decode.init_speculator)
    vllm_plugin.register()
    assert model_runner.init_speculator is spec_decode.init_speculator
    assert model_runner.init_speculator.__module__ == vllm_plugin.__name__


@pytest.mark.parametrize("is_ours", [True, False])
def test_speculator_of_vllm_itself_is_warned_of(is_ours, log, monkeypatch):
    monkeypatch.setattr(*parts(vllm_plugin.NEEDED[5]), lambda _: None)
    vllm_plugin.register()
    config = config_of()
    config.speculative_config.method, config.use_v2_model_runner = "ngram_gpu", True
    made = type("Speculator", (), {"__module__": "specds" if is_ours else "vllm.v1"})()
    runner = SimpleNamespace(speculator=made)
    worker = SimpleNamespace(vllm_config=config, worker=SimpleNamespace(model_runner=runner))
    resolve(vllm_plugin.NEEDED[5])(worker)
    assert len(warnings(log)) == (not is_ours)


@pytest.mark.parametrize("name", [vllm.RUNNER, *SAMPLING])
def test_proposer_is_rejected_at_start_if_a_name_moved(name, monkeypatch):
    renamed(name, monkeypatch)
    with pytest.raises(IncompatibleError, match=name.rpartition(".")[2]):
        vllm.Proposer(config_of())


def test_vllm_uses_its_own_head_with_one_warning_if_a_name_moved(log, monkeypatch):
    monkeypatch.setattr(*parts(LOAD), lambda *_: None)
    vllm_plugin.register()
    resolve(LOAD)(SimpleNamespace(vllm_config=config_of()), None)
    [warning] = warnings(log)
    assert "prepare_next_token_ids_padded" in warning


@pytest.mark.parametrize("name", vllm_grammars.NEEDED)
def test_structured_output_is_drafted_like_other_text_if_a_name_moved(name, log, monkeypatch):
    config = configured()
    if "reasoning" in name:
        config.structured_outputs_config.reasoning_parser = "deepseek_r1"
    params = StructuredOutputsParams(json="{}")
    params._backend = "guidance" if "guidance" in name else "xgrammar"
    renamed(name, monkeypatch)
    sampling = SamplingParams(structured_outputs=params)
    assert vllm_grammars.Grammars(config, log).shadow(sampling, [1])._begun.exception()
    [warning] = warnings(log)
    assert name in warning


def test_ineffective_configuration_is_warned_of(tmp_path, log, monkeypatch):
    head = eagle(workload.eagle_head(tmp_path), 5)
    with monkeypatch.context() as patch:
        patch.setattr(*parts(LOAD), resolve(LOAD))
        vllm_plugin.register()
        for about, is_warned in [({}, False), (head, False), (ngrams(8), True)]:
            configured(**about)
            assert log.warning.called == is_warned
    log.warning.reset_mock()
    configured(**head)  # its class is not wrapped
    assert log.warning.called


OURS = {"memory_scope": "shared", "sync_interval": 5}
WRONG = [
    ("unknown field `datastor`", {"datastor": "x"}),
    ("nowhere: no datastore: build one there, or correct", {"datastore": "nowhere"}),
    ("is of another tokenizer: its fingerprint is", {"datastore": "other"}),
    ("unknown variant `tenants`", {"memory_scope": "tenants"}),
    ('points [tokens, seconds], not "fast"', {"step_cost": "fast"}),
    ("`min_prob` must lie in 0..=1, not 2", {"min_prob": 2}),
    ("pass its folder as `snapshot`", OURS),
    ("in `/nowhere`, which is not a folder: make that first", {**OURS, "snapshot": "/nowhere/x"}),
    ("must be an object such as {}, not 'chat.specds'", "chat.specds"),
]


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize(("message", "options"), WRONG)
def test_wrong_options_are_one_sentence_before_the_model_is_loaded(message, options, tmp_path):
    vllm_plugin.register()
    if options == {"datastore": "other"}:
        with DatastoreBuilder(tmp_path / "other", vocab_size=10, separator=10) as builder:
            builder.add_documents([0], [1])
            builder.finish()
        options = {"datastore": str(tmp_path / "other")}
    with pytest.raises(RuntimeError, match=re.escape(message)) as raised:
        configured(additional_config={"specds": options})
    assert "\n" not in str(raised.value)


@pytest.mark.usefixtures("log")
def test_configuration_of_another_runner_is_an_error_with_the_line_to_use(monkeypatch):
    vllm_plugin.register()
    documented = {"method": "ngram_gpu", "num_speculative_tokens": 8}
    misspelled = {**chains(8)["speculative_config"], "model": "specds.integrations.vllm.Propose"}
    for speculative in (documented, misspelled):
        with pytest.raises(RuntimeError, match=r"pass --speculative-config '(.*)'") as raised:
            configured(speculative_config=speculative)
        line = json.loads(str(raised.value).split("'")[-2])
        assert line == chains(8)["speculative_config"]


@pytest.mark.parametrize(
    ("is_added", "about"),
    [
        (True, {}),
        (False, {"enforce_eager": True}),
        (False, {"async_scheduling": True}),
        (False, {"max_num_seqs": 4}),
        (False, {"enable_adaptive_verification": True}),
        (False, {"num_speculative_tokens_per_batch_size": [(1, 256, 3)]}),
    ],
)
def test_schedule_of_draft_sizes_is_added_where_vllm_has_no_other_graphs(is_added, about):
    speculative = {"enable_adaptive_verification": False, **about}
    speculative.setdefault("num_speculative_tokens_per_batch_size", None)
    seen = SimpleNamespace(num_speculative_tokens=8, **speculative)
    scheduler = {"max_num_seqs": 256, "async_scheduling": False, **about}
    config = SimpleNamespace(
        speculative_config=seen,
        scheduler_config=SimpleNamespace(**scheduler),
        parallel_config=SimpleNamespace(data_parallel_size=1),
        model_config=SimpleNamespace(enforce_eager=about.get("enforce_eager", False)),
    )
    before = seen.num_speculative_tokens_per_batch_size
    vllm_plugin._add_draft_sizes(config)
    expected = vllm_plugin.draft_schedule(8, 256) if is_added else before
    assert seen.num_speculative_tokens_per_batch_size == expected


@pytest.mark.usefixtures("log")
def test_check_writes_no_snapshot_and_accepts_the_default_datastore(tmp_path):
    vllm_plugin.register()
    kept = {"memory_scope": "tenant", "snapshot": str(tmp_path / "kept"), "sync_interval": 1}
    configured(additional_config={"specds": kept})
    assert not (tmp_path / "kept").exists()
    configured(additional_config={"specds": {"datastore": "auto"}})


def configured(**about):
    return EngineArgs(model=workload.model_path(), **{**chains(8), **about}).create_engine_config()
