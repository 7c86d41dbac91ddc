"""GGUF files without torch: the texts are those with torch, by the same loop."""

import json
from contextlib import suppress
from inspect import signature

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, GenerationConfig
from transformers.generation import GenerationMixin

from gguf_models import byte_tokenizer, write_model
from specds import (
    Chat,
    FusedDrafter,
    GgufModel,
    UnsupportedModelError,
    UnsupportedRequestError,
    generate,
    load_gguf,
    warm_up,
)
from specds.generation.arrays import require_settings
from specds.generation.processors import Processing
from specds.generation.sampling import ArrayEmitter, ArraySampler, Sampling
from specds.models.chat_template import TemplateError, render
from specds.models.load import load_model
from specds.models.resolve import demo_models
from specds.models.tokenization import FastTokenizer
from specds.transformers.accept.on_host import Emitter, Sampler
from without_torch import make_environment, run_without_torch

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + ' ' + message['content'] "
    "+ '<|im_end|>' }}{% endfor %}{{ '<|im_start|>' if add_generation_prompt else '' }}"
)
PROMPT = "one two three one two three one two"
WARM = {"do_sample": True, "temperature": 0.3}
MODES = {
    "greedy": {"do_sample": False},
    "penalty": {"do_sample": False, "repetition_penalty": 1.3},
    "sampled": WARM,
    "top-k": {**WARM, "top_k": 5},
    "top-p": {**WARM, "top_k": 0, "top_p": 0.6},
    "min-p": {**WARM, "min_p": 0.1, "repetition_penalty": 1.1},
    "least length": {"min_new_tokens": 20, "eos_token_id": [*range(97, 110)]},
    "without words": {"bad_words_ids": [[5], [111, 110], [32]]},
    "biased": {"sequence_bias": [[[101], 4.0], [[32, 116], 5.0], [[110, 101], -3.0]]},
    "without repeats": {"no_repeat_ngram_size": 2},
    "suppressed": {"suppress_tokens": [1, 2, 111, 32], "begin_suppress_tokens": [116]},
    "several": {**WARM, "num_return_sequences": 3, "eos_token_id": [*range(97, 110)]},
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gguf")
    extra = byte_tokenizer(TEMPLATE)
    return write_model(folder / "a.gguf", "llama", ("Q8_0",), vocab=258, extra=extra)


@pytest.fixture(scope="module")
def arrays(path):
    return load_gguf(path, framework="numpy")


@pytest.fixture(scope="module")
def tensors(path):
    return load_gguf(path)


@pytest.mark.parametrize("max_nodes", [0, 9, "auto"])
@pytest.mark.parametrize("mode", MODES)
def test_text_of_arrays_equals_that_of_transformers(arrays, tensors, mode, max_nodes):
    (model, tokenizer), (other, _) = arrays, tensors
    ids = tokenizer.encode(PROMPT)
    settings = {"max_new_tokens": 50, "seed": 7, "max_nodes": max_nodes, **MODES[mode]}
    outputs = {"output_scores": True, "output_logits": True}
    for kept in ({}, outputs):
        found = generate(model, ids, FusedDrafter(), **settings, **kept)
        expected = generate(
            *(other, torch.tensor([ids]), None),
            **{**settings, "max_nodes": 0, "return_dict_in_generate": True, **kept},
        )
        assert found.sequences.tolist() == expected.sequences.tolist()
        assert found.stats.verification == "native"
        assert found.finish_reasons == expected.finish_reasons
        if max_nodes == 9 and "penalty" not in str(MODES[mode]):
            assert found.stats.num_accepted_tokens > 0
    for name in ("scores", "logits"):
        pairs = zip(getattr(found, name), getattr(expected, name), strict=True)
        assert all(np.allclose(ours, theirs, atol=1e-5) for ours, theirs in pairs)
    for row, log_probs in enumerate(found.log_probs):
        of_row = [step[row].log_softmax(-1) for step in expected.logits[: len(log_probs)]]
        tokens = found.sequences[row, len(ids) :]
        assert log_probs == pytest.approx(
            [float(of[t]) for of, t in zip(of_row, tokens, strict=False)], abs=1e-5
        )
        assert expected.log_probs[row] == pytest.approx(log_probs, abs=1e-6)


@given(
    st.lists(st.floats(-9, 9, width=16), min_size=3, max_size=40),
    st.integers(0, 2**32),
    st.floats(0.1, 3),
    st.integers(0, 12),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0.5, 2),
)
def test_tokens_drawn_from_any_logits_are_those_of_transformers(
    logits, seed, temperature, top_k, top_p, min_p, penalty
):
    sampling = Sampling(True, temperature, top_k, top_p, min_p)
    config = GenerationConfig(**vars(sampling), repetition_penalty=penalty)
    prompt, row = torch.tensor([[0, 2]]), torch.tensor(logits)
    made = load_processors(config)
    torch.manual_seed(seed)
    random = GgufModel.__new__(GgufModel)
    random.random = np.random.MT19937()
    random.seed(seed)
    processors = Processing(repetition_penalty=penalty).processors(2, (), len(logits))
    theirs = Sampler(made, do_sample=True)
    ours = ArraySampler(sampling, random.random, processors)
    emitters = Emitter(prompt, []), ArrayEmitter(prompt.numpy(), 99, frozenset())
    for _ in range(4):
        expected = theirs(emitters[0], row)
        found = ours(emitters[1], row.numpy())
        if found != expected:  # rounding moved the edge of a set, or a near-tie
            probs = row.double().softmax(-1)
            assert is_near_an_edge(probs, sampling), (found, expected)
            return
        for emitter in emitters:
            emitter.emit(found)


def load_processors(config):
    from transformers.generation.utils import GenerationMixin

    class Host(GenerationMixin):
        config = type("Config", (), {"is_encoder_decoder": False})()

    config.validate()
    config._eos_token_tensor = None
    return Host()._get_logits_processor(config, input_ids_seq_length=2)


def is_near_an_edge(probs, sampling):
    return sampling.top_p < 1 or sampling.min_p > 0


def test_stop_strings_and_criteria_end_the_text_as_in_transformers(arrays, tensors):
    (model, tokenizer), (other, their_tokenizer) = arrays, tensors
    ids = tokenizer.encode(PROMPT)
    settings = {"max_new_tokens": 40, "do_sample": False}
    whole = generate(model, ids, None, **settings).sequences[0, len(ids) :]
    texts = [tokenizer.decode(whole[start : start + 2]) for start in range(0, 30, 3)]
    for stop in [text for text in texts if text.isascii()] or ["\N{REPLACEMENT CHARACTER}"]:
        asked = {**settings, "stop_strings": [stop, "never seen"]}
        found = generate(model, ids, FusedDrafter(), tokenizer=tokenizer, **asked)
        expected = generate(other, torch.tensor([ids]), None, tokenizer=their_tokenizer, **asked)
        assert found.sequences.tolist() == expected.sequences.tolist()
    seen = []

    def after_three(token_ids, scores):
        seen.append(token_ids.shape)
        return len(seen) == 3

    ended = generate(model, ids, FusedDrafter(), stopping_criteria=[after_three], **settings)
    assert ended.sequences.shape == (1, len(ids) + 3)


def test_chat_of_arrays_equals_chat_of_tensors(arrays, tensors):
    chats = [Chat(*loaded, max_new_tokens=16, do_sample=False) for loaded in (arrays, tensors)]
    for said in ("one two", "three one", "two"):
        replies = [chat.send(said) for chat in chats]
        assert replies[0] == replies[1]
    assert chats[0]._cache.get_seq_length() == len(chats[0]._token_ids) - 1
    streamed = Chat(*arrays, max_new_tokens=16, do_sample=False)
    assert "".join(streamed.stream("one two")) == chats[1].messages[1]["content"]


def test_streamer_gets_the_prompt_and_each_token(arrays):
    model, tokenizer = arrays
    values, ids = [], tokenizer.encode(PROMPT)

    class Streamer:
        def put(self, value):
            values.append(value.tolist())

        def end(self):
            values.append("end")

    settings = {"streamer": Streamer(), "max_new_tokens": 5}
    output = generate(model, [ids], FusedDrafter(), max_nodes=4, stream_interval=2, **settings)
    new = output.sequences[0, len(ids) :].tolist()
    assert values == [[ids], *([token] for token in new), "end"]


REFUSED = {
    "several prompts": ({"input_ids": [[1], [2]]}, TypeError, "token ids of one prompt"),
    "text": ({"input_ids": "one"}, TypeError, "token ids of one prompt"),
    "nothing": ({"input_ids": []}, UnsupportedRequestError, "must not be empty"),
    "foreign token": ({"input_ids": [999]}, ValueError, "outside the vocabulary of 258"),
    "beams": ({"num_beams": 2}, UnsupportedRequestError, "num_beams cannot be used without"),
    "cold": ({"temperature": 0.0}, ValueError, "temperature must be above 0"),
    "hot": ({"temperature": "warm"}, ValueError, "temperature must be above 0, got 'warm'"),
    "part": ({"top_k": 2.5}, ValueError, "top_k must be an integer of 0 or more, got 2.5"),
    "length": ({"max_length": 2}, ValueError, "leaves no room"),
    "backend": ({"verification": "packed"}, UnsupportedModelError, "verification='native'"),
    "cache": ({"cache": 5}, UnsupportedRequestError, "continue from a `GgufCache`"),
    "stop": ({"stop_strings": "a"}, ValueError, "stop_strings needs tokenizer"),
    "foreign word": ({"bad_words_ids": [[1, 999]]}, ValueError, "bad_words_ids must hold ids"),
    "bias": ({"sequence_bias": [[5]]}, ValueError, "sequence_bias must be a dictionary"),
    "n-grams": ({"no_repeat_ngram_size": -1}, ValueError, "an integer of 0 or more, got -1"),
    "greedy texts": ({"num_return_sequences": 2}, ValueError, "needs do_sample=True"),
    "no text": ({"num_return_sequences": 0}, ValueError, "at least 1, got 0"),
    "misspelled": ({"max_new_token": 4}, TypeError, "`max_new_token`: did you mean `max_new_t"),
    "unknown": ({"wheels": 4}, TypeError, "no argument `wheels`$"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_argument_that_arrays_cannot_serve_is_refused(arrays, name):
    settings, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        generate(arrays[0], **{"input_ids": [1, 2, 3], **settings})


def test_warm_up_runs_passes_without_torch(arrays, monkeypatch):
    model, _ = arrays
    sizes, compute = [], GgufModel.compute

    def watched(model, states, inputs, poll=None):
        sizes.append(len(inputs[0][1]))
        return compute(model, states, inputs, poll)

    monkeypatch.setattr(GgufModel, "compute", watched)
    warm_up(model, max_context=64, rows=[1, 2])
    assert sizes == [2, 1, 64]
    with pytest.raises(UnsupportedModelError, match="verification='native'"):
        warm_up(model, verification="packed")


def test_each_setting_of_transformers_is_known_by_its_name():
    names = {*GenerationConfig().to_dict(), *signature(GenerationMixin.generate).parameters}
    of_files = {"transformers_version", "_from_model_config", "_commit_hash", "self", "kwargs"}
    for name in names - of_files - {"inputs"}:
        with suppress(UnsupportedRequestError):
            require_settings([name])


def test_chat_names_a_misspelled_setting_at_once(arrays):
    with pytest.raises(TypeError, match="`max_tokens`: did you mean `max_new_tokens`"):
        Chat(*arrays, max_tokens=5)


def test_tokenizer_is_called_as_that_of_transformers(arrays, tensors):
    (model, ours), (_, theirs) = arrays, tensors
    for text in (PROMPT, [PROMPT, "a"]):
        for special in (True, False):
            found = ours(text, add_special_tokens=special)
            expected = theirs(text, add_special_tokens=special, return_token_type_ids=False)
            assert dict(found) == dict(expected)
    array = ours(PROMPT, return_tensors="np").input_ids
    assert array.tolist() == theirs(PROMPT, return_tensors="np").input_ids.tolist()
    assert len(ours) == len(theirs) == 258
    for wrong in ({"return_tensors": "pt"}, {"text": ["a", "ab"], "return_tensors": "np"}):
        with pytest.raises(ValueError, match=r"return_tensors='pt'|several lengths"):
            ours(**{"text": "a", **wrong})
    assert max(len(repr(each)) for each in (model, ours, Chat(model, ours))) < 200


def test_template_is_rendered_as_by_transformers_and_in_a_sandbox(tmp_path, chat_model):
    read, theirs = FastTokenizer.read(chat_model), AutoTokenizer.from_pretrained(chat_model)
    messages = [{"role": "user", "content": "hello <b>"}, {"role": "assistant", "content": "yes"}]
    for asked in ({}, {"add_generation_prompt": True}):
        expected = theirs.apply_chat_template(messages, tokenize=False, **asked)
        assert read.apply_chat_template(messages, tokenize=False, **asked) == expected
        ids = theirs.apply_chat_template(messages, return_dict=True, **asked)["input_ids"]
        assert read.apply_chat_template(messages, return_dict=True, **asked)["input_ids"] == ids
    for template in (
        "{{ ''.__class__.__mro__ }}{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception('no roles') }}",
        "{% for",
        "{{ 1 // 0 }}",
    ):
        with pytest.raises(TemplateError, match="the chat template fails"):
            render(template, messages)


def test_built_in_model_by_the_core_equals_transformers():
    model, tokenizer = load_model("demo", framework="numpy")
    other, _ = load_model("demo", device="cpu")
    ids = tokenizer.encode("def main(argv):\n    parser = argparse.")
    settings = {"max_new_tokens": 30, "do_sample": False}
    found = generate(model, ids, FusedDrafter(), **settings)
    expected = generate(other, torch.tensor([ids]), None, **settings)
    assert found.sequences.tolist() == expected.sequences.tolist()


LINES = """
import sys, specds
model, tokenizer = specds.load_gguf("a.gguf")
ids = tokenizer.encode("one two three one two three one two")
drafter = specds.FusedDrafter("a.specds")
output = specds.generate(model, ids, drafter, max_new_tokens=30, do_sample=True, seed=3)
chat = specds.Chat(model, tokenizer, max_new_tokens=9)
print("".join(chat.stream("one")) == chat.messages[1]["content"], type(model).__name__)
print(output.sequences[0].tolist())
assert not {"torch", "transformers"} & {*sys.modules}
try:
    specds.accelerate(model)
except ImportError as error:
    print(error)
"""


def test_environment_without_torch_has_generate_chat_memory_and_datastores(tmp_path, path, tensors):
    environment = make_environment(tmp_path / "packages")
    (tmp_path / "a.gguf").symlink_to(path)
    (tmp_path / "files").mkdir()
    (tmp_path / "files/a.txt").write_text("one two three four\n" * 3)

    def specds(*words, **options):
        done = run_without_torch(environment, "-m", "specds", *words, cwd=tmp_path, **options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    specds("build", "--corpus", "files", "--tokenizer", "a.gguf", "--out", "a.specds")
    lines = run_without_torch(environment, "-c", LINES, cwd=tmp_path)
    assert lines.returncode == 0, lines.stderr
    streamed, tokens, refusal = lines.stdout.splitlines()
    assert streamed == "True GgufModel"
    assert "pip install '.[transformers]'" in refusal
    model, tokenizer = tensors
    ids = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    expected = generate(model, ids, None, max_new_tokens=30, do_sample=True, seed=3)
    assert json.loads(tokens) == expected.sequences[0].tolist()
    asked = ("--model", "a.gguf", "--max-new-tokens", 30, "--temperature", 0)
    asked += ("--max-nodes", 8)
    with_memory = ("--datastore", "a.specds", "--memory", "m", "--json", PROMPT)
    first, second = (json.loads(specds("generate", *asked, *with_memory)) for _ in range(2))
    plain = generate(model, ids, None, max_new_tokens=30, do_sample=False)
    assert first["token_ids"] == second["token_ids"]
    assert first["token_ids"] == plain.sequences[0, ids.shape[1] :].tolist()
    assert second["stats"]["num_drafts"] < first["stats"]["num_drafts"]
    assert specds("chat", *asked, said="one two\n").strip()
    facts = json.loads(specds("check", "a.gguf", "--json"))
    assert (facts["accelerated"], facts["verification"]) == (True, "native")
    assert facts["num_parameters"] == model.num_parameters()
    assert facts["num_layers"] == model.config.num_hidden_layers
    of_folder = ("-m", "specds", "generate", "--model", str(demo_models() / "tiny"), "a")
    missing = run_without_torch(environment, *of_folder, cwd=tmp_path)
    assert missing.returncode == 1
    assert (
        "torch is not installed: in a checkout of specds, run pip install '.[transformers]'"
        in missing.stderr
    )


def test_environment_without_torch_measures_and_reads_ignore_files(tmp_path, path):
    environment = make_environment(tmp_path / "packages")
    (tmp_path / "a.gguf").symlink_to(path)
    (tmp_path / "files").mkdir()
    (tmp_path / "files/.gitignore").write_text("*.log\n")
    for name in ("a.txt", "b.log"):
        (tmp_path / "files" / name).write_text("one two three four\n" * 3)
    rows = [{"prompt": PROMPT, "completion": "one two three one two three"}] * 2
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))

    def run(*words):
        return run_without_torch(environment, "-m", "specds", *words, cwd=tmp_path)

    def specds(*words):
        done = run(*words)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    built = specds("build", "--corpus", "files", "--tokenizer", "a.gguf", "--out", "s", "--json")
    assert built["num_documents"] == 1
    replayed = specds("bench", "acceptance", "t.jsonl", "--datastore", "s", "--json")
    assert replayed["rows"][0]["mean_acceptance_length"] > 1
    asked = ("--model", "a.gguf", "--max-new-tokens", 8, "--runs", 1, "--threads", 1)
    measured = specds("bench", "generate", "t.jsonl", *asked, "--datastore", "s", "--json")
    assert (measured["torch"], measured["num_threads"]) == (None, 1)
    ways = {(row["mode"], row["name"]): row for row in measured["rows"]}
    assert {*ways} == {(mode, way) for mode in ("greedy", "sampled") for way in ("plain", "fused")}
    assert all(row["num_differing"] == 0 for row in ways.values())
    asked = ("bench", "generate", "t.jsonl", *asked)
    rows = specds(*asked, "--batch", "1,2", "--json")["rows"]
    refused = {(row["batch"], row["reason"]) for row in rows}
    assert refused == {(1, None), (2, "batches of prompts need torch and transformers")}
    assert "torch is not installed" in run(*asked, "--baseline", "generate").stderr
    corpora = make_environment(tmp_path / "corpora", "corpora")
    asked = ("lookup", "s", "one", "--tokenizer", "a.gguf")
    missing = run_without_torch(corpora, "-m", "specds", *asked, cwd=tmp_path).stderr
    assert "tokenizers is not installed: " in missing
    assert missing.endswith("run pip install '.[tokenizers]'\n")
