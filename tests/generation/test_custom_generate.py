"""The folder `custom_generate`: transformers loads it, and gives the baseline text."""

import shutil

import pytest
import torch
import transformers.dynamic_module_utils
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, pipeline

from models import GREEDY, Recorder, random_drafter
from specds import FusedDrafter, build_datastore, generate
from specds.generation import UnsupportedRequestError
from specds.models.resolve import demo_models
from specds.transformers import custom_generate

PROMPT = "def add(a, b):\n"
SETTINGS = {"max_new_tokens": 16, **GREEDY}


@pytest.fixture(autouse=True)
def _modules_are_kept_for_the_test_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(
        transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules")
    )


@pytest.fixture(scope="module")
def datastore(tmp_path_factory, demo_tokenizer):
    made = tmp_path_factory.mktemp("folder")
    (made / "code.txt").write_text("def add(a, b):\n    return a + b\n" * 9)
    corpus = str(made / "code.txt")
    return build_datastore(corpus, demo_tokenizer, made / "code.specds").path


@pytest.fixture
def used(monkeypatch):
    """The drafters of requests that went through a folder."""
    drafters = []
    by_folder = custom_generate.generate_by

    def spy(model, plain, options, *args, **kwargs):
        drafters.append(options.drafter)
        return by_folder(model, plain, options, *args, **kwargs)

    monkeypatch.setattr(custom_generate, "generate_by", spy)
    return drafters


def test_call_with_the_folder_goes_through_specds(tiny_model, tmp_path, datastore, used):
    model, tokenizer = tiny_model
    ids = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    custom_generate.export_generate(tmp_path / "own", datastore)
    by_name = {"custom_generate": str(tmp_path / "own"), "trust_remote_code": True}
    free = model.generate(ids, **SETTINGS)
    stop = tokenizer.decode(free[0, -6:-4])
    drafter, criterion = random_drafter(), {"stop_strings": stop, "tokenizer": tokenizer}
    settings = {"drafter": drafter, "max_nodes": 3, "stream_interval": 4}
    for more, own in (({}, {}), (criterion, {}), ({}, settings)):
        plain, ours = Recorder(), Recorder()
        expected = model.generate(ids, streamer=plain, **SETTINGS, **more)
        output = model.generate(ids, streamer=ours, **SETTINGS, **more, **own, **by_name)
        assert output.tolist() == expected.tolist()
        assert ours.received == plain.received
    assert len(expected[0]) > 0
    assert drafter.sessions
    # One drafter of the datastore serves all calls without a drafter, and stores no requests.
    assert used[0]._drafter is used[1]._drafter
    assert isinstance(used[0]._drafter, FusedDrafter)
    assert str(used[0].datastore.path) == str(datastore)
    assert used[0]._drafter.memory is None
    with pytest.raises(ValueError, match="trust_remote_code"):
        model.generate(ids, **(by_name | {"trust_remote_code": False}), **SETTINGS)
    with pytest.raises(UnsupportedRequestError, match="beam_search"):
        model.generate(ids, num_beams=2, max_new_tokens=3, **by_name)


def test_predicted_output_of_the_configuration_is_drafted(tiny_model, tmp_path, used):
    model, tokenizer = tiny_model
    ids = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    custom_generate.export_generate(tmp_path)
    expected = model.generate(ids, **SETTINGS)
    predicted = expected[0, ids.shape[1] :].tolist()
    about = {"custom_generate": str(tmp_path), "trust_remote_code": True, "tokenizer": tokenizer}
    for given in (predicted, tokenizer.decode(predicted)):
        config = GenerationConfig(specds_predicted_output=given, **SETTINGS)
        assert model.generate(ids, generation_config=config, **about).tolist() == expected.tolist()
    by_ids, by_text = (drafter._arguments["predicted_output"] for drafter in used)
    assert tokenizer.decode(by_text) == tokenizer.decode(by_ids)
    assert custom_generate._shared_drafter(None).stats()["predicted_output"] > 0


def test_model_loaded_with_the_folder_goes_through_specds(tmp_path, datastore, used):
    home = shutil.copytree(demo_models() / "tiny", tmp_path / "model")
    custom_generate.export_generate(home, datastore, on_unsupported="baseline")
    tokenizer = AutoTokenizer.from_pretrained(home)
    plain = AutoModelForCausalLM.from_pretrained(home, dtype=torch.float32)
    ours = AutoModelForCausalLM.from_pretrained(home, dtype=torch.float32, trust_remote_code=True)
    encoded = tokenizer(PROMPT, return_tensors="pt")
    ids = encoded["input_ids"]
    expected = plain.generate(ids, **SETTINGS).tolist()
    assert used == []
    assert ours.generate(ids, **SETTINGS).tolist() == expected
    assert ours.generate(**encoded, **SETTINGS).tolist() == expected
    texts = [
        pipeline("text-generation", model=model, tokenizer=tokenizer)(PROMPT, **SETTINGS)
        for model in (plain, ours)
    ]
    assert texts[0] == texts[1]
    assert len(used) == 3
    beams = {"num_beams": 2, "max_new_tokens": 4, "do_sample": False}
    assert ours.generate(ids, **beams).tolist() == plain.generate(ids, **beams).tolist()
    drafter = random_drafter()
    assert generate(ours, ids, drafter, **SETTINGS).sequences.tolist() == expected
    assert drafter.sessions


def test_export_command_overwrites_its_own_folder(run, tmp_path, datastore):
    home = shutil.copytree(demo_models() / "tiny", tmp_path / "model")
    for _ in range(2):  # it may overwrite its own folder
        code, _, err = run(
            *("export-generate", tmp_path / "own", "--datastore", datastore, "--into", home)
        )
        assert code == 0, err
    for made in (tmp_path / "own", home):
        assert repr(str(datastore)) in (made / "custom_generate/generate.py").read_text()
        assert (made / "custom_generate/requirements.txt").read_text().startswith("specds>=")
