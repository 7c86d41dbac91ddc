"""The names of a real vLLM that the adapters use, each renamed: run by `make test-vllm`."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

pytest.importorskip("vllm", exc_type=ImportError)

from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.worker.gpu import spec_decode

from engines import workload
from engines.vllm import chains, eagle, ngrams
from specds.integrations import vllm, vllm_combined, vllm_grammars, vllm_plugin
from specds.integrations.adapter import IncompatibleError, resolve
from vllm_shapes import config_of

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]

LOAD = f"{vllm_combined.HEADS}.load_model"
AT_START, LATER = vllm_plugin.NEEDED[:2], vllm_plugin.NEEDED[2:]
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
    monkeypatch.setattr(spec_decode, "init_speculator", lambda *_: "its own")
    vllm_plugin.register()
    renamed(name, monkeypatch)
    config = config_of()
    config.speculative_config.method, config.use_v2_model_runner = "ngram_gpu", True
    assert spec_decode.init_speculator(config, None, None) == "its own"
    [warning] = warnings(log)
    assert name in warning


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


@pytest.mark.usefixtures("log")
def test_invalid_configuration_raises_before_the_model_is_loaded(tmp_path):
    vllm_plugin.register()
    kept = {"memory_scope": "tenant", "snapshot": str(tmp_path / "kept"), "sync_interval": 1}
    configured(additional_config={"specds": kept})
    assert not (tmp_path / "kept").exists()
    for key in ("dataset", "datastore"):
        with pytest.raises((ValueError, OSError), match=r"unknown field `dataset`|No such file"):
            configured(additional_config={"specds": {key: "nowhere"}})


def configured(**about):
    return EngineArgs(model=workload.model_path(), **{**chains(8), **about}).create_engine_config()
