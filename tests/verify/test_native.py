"""The backend `native`: small random GGUF models, with drafts and without."""

import copy
import pickle

import pytest
import torch
from transformers import AutoModelForCausalLM, LogitsProcessor, LogitsProcessorList

from gguf_models import byte_tokenizer, write_model
from specds import (
    Chat,
    FusedDrafter,
    UnsupportedModelError,
    UnsupportedRequestError,
    accelerate,
    generate,
    load_gguf,
    warm_up,
)
from specds._core import GgufFile
from specds.generation.native import NativeRunner
from specds.transformers.native_model import NativeCache
from specds.transformers.verify.in_place import modules_of
from specds.transformers.verify.support import check_model

FAMILIES = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "gemma3": {"attention.sliding_window": 20, "final_logit_softcapping": 5.0},
}
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + ' ' + message['content'] "
    "+ '<|im_end|>' }}{% endfor %}{{ '<|im_start|>' if add_generation_prompt else '' }}"
)
KINDS = ("Q4_1", "Q8_0", "Q5_0")
MODES = {"greedy": {"do_sample": False}, "sampled": {"do_sample": True, "temperature": 0.05}}


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gguf")

    def loaded(family="llama", activations="float32", kinds=KINDS):
        path = folder / f"{family}-{'-'.join(kinds)}.gguf"
        if not path.exists():
            extra = byte_tokenizer(TEMPLATE)
            write_model(path, family, kinds, vocab=258, extra=extra, **FAMILIES[family])
        return load_gguf(path, activations)

    return loaded


def ids_of(text):
    return torch.tensor([[*text.encode()]])


PROMPT = ids_of("one two three one two three one two")


def texts(model, ids, drafter, **settings):
    torch.manual_seed(3)
    return generate(model, ids, drafter, **{"max_new_tokens": 60, "eos_token_id": 257} | settings)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("activations", ["float32", "int8"])
@pytest.mark.parametrize("family", FAMILIES)
def test_text_with_drafts_equals_text_without(load, family, activations, mode):
    model, _ = load(family, activations)
    settings = MODES[mode] | {"return_dict_in_generate": True, "output_logits": True}
    drafted = texts(model, PROMPT, FusedDrafter(), max_nodes=12, **settings)
    assert drafted.stats.verification == "native"
    assert drafted.stats.num_accepted_tokens > 5
    plain = texts(model, PROMPT, None, max_nodes=0, **settings)
    torch.manual_seed(3)
    baseline = model.generate(PROMPT, max_new_tokens=60, eos_token_id=257, **settings)
    for other in (plain, baseline):
        assert torch.equal(drafted.sequences, other.sequences)
        assert torch.equal(torch.cat(drafted.logits), torch.cat(other.logits))
    automatic = texts(model, PROMPT, FusedDrafter(), max_nodes="auto", **MODES[mode])
    assert torch.equal(automatic.sequences, drafted.sequences)


class Streamed:
    def __init__(self):
        self.values = []

    def put(self, value):
        self.values.append(value.tolist())

    def end(self):
        self.values.append("end")


@pytest.mark.parametrize("mode", MODES)
def test_padded_batch_equals_the_baseline(load, mode):
    model, _ = load("qwen3")
    rows = [PROMPT[0], ids_of("two three")[0], PROMPT[0], ids_of("x y x y x")[0]]
    width = max(map(len, rows))
    ids = torch.stack([torch.nn.functional.pad(row, (width - len(row), 0)) for row in rows])
    shown = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    settings = {"attention_mask": shown, "pad_token_id": 0, **MODES[mode]}
    streams = [Streamed(), Streamed()]
    drafted = texts(model, ids, FusedDrafter(), max_nodes=6, streamer=streams[0], **settings)
    assert drafted.stats.num_accepted_tokens > 0
    plain = texts(model, ids, None, max_nodes=0, streamer=streams[1], **settings)
    torch.manual_seed(3)
    settings |= {"max_new_tokens": 60, "eos_token_id": 257}
    baseline = model.generate(ids, **settings)
    assert torch.equal(drafted.sequences, plain.sequences)
    assert torch.equal(drafted.sequences, baseline)
    assert streams[0].values == streams[1].values


def test_rows_that_end_leave_the_others_unchanged(load):
    model, _ = load("llama")
    ids = torch.cat([PROMPT, PROMPT.flip(1), PROMPT.roll(3)])
    alone = [texts(model, row[None], None, max_nodes=0) for row in ids]
    endings = sorted({int(of.sequences[0, -20]) for of in alone})
    settings = {"eos_token_id": endings, "pad_token_id": 0}
    together = texts(model, ids, FusedDrafter(), max_nodes=6, **settings).sequences
    torch.manual_seed(3)
    expected = model.generate(ids, max_new_tokens=60, **settings)
    assert torch.equal(together, expected)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_chat_keeps_the_states_of_earlier_turns(load, family):
    model, tokenizer = load(family)
    chat = Chat(model, tokenizer, max_new_tokens=20, do_sample=False)
    for turn in ("one two", "three one two", "three"):
        chat.send(turn)
        assert chat._cache.get_seq_length() == len(chat._token_ids) - 1
    whole = tokenizer.apply_chat_template(
        chat.messages[:-1], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )["input_ids"]
    expected = model.generate(whole, max_new_tokens=20, do_sample=False)
    assert chat._token_ids == expected[0].tolist()
    with pytest.raises(UnsupportedRequestError):
        chat.send("one", num_beams=2)
    chat.messages = chat.messages[:2]
    assert chat.send("three one two") == chat.messages[3]["content"]


def test_cache_of_the_caller_is_continued_and_restored_after_a_failure(load):
    model, _ = load()
    cache = NativeCache()
    first = texts(model, PROMPT, FusedDrafter(), cache=cache, return_dict_in_generate=True)
    assert first.cache is cache
    length = cache.get_seq_length()
    assert length == first.sequences.shape[1] - 1
    more = torch.cat([first.sequences, PROMPT], dim=1)

    def fail(step):
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        texts(model, more, FusedDrafter(), cache=cache, on_step=fail)
    assert cache.get_seq_length() == length
    second = texts(model, more, FusedDrafter(), cache=cache)
    assert torch.equal(second.sequences, texts(model, more, None).sequences)
    from transformers import DynamicCache

    with pytest.raises(ValueError, match="NativeCache"):
        texts(model, PROMPT, None, cache=DynamicCache())


class Forbid(LogitsProcessor):
    rowwise = True

    def __call__(self, input_ids, scores):
        scores[:, input_ids[0, -1]] = -torch.inf
        return scores


def test_processors_see_what_the_baseline_shows_them(load):
    model, _ = load()
    settings = {"repetition_penalty": 1.2, "max_new_tokens": 40, "do_sample": False}
    settings["logits_processor"] = LogitsProcessorList([Forbid()])
    drafted = texts(model, PROMPT, FusedDrafter(), max_nodes=12, **settings)
    assert torch.equal(drafted.sequences, model.generate(PROMPT, **settings))


def test_accelerated_model_and_copies_write_the_same_text(load):
    model, _ = load()
    expected = model.generate(PROMPT, max_new_tokens=20, do_sample=False)
    with accelerate(model) as handle:
        assert torch.equal(model.generate(PROMPT, max_new_tokens=20, do_sample=False), expected)
        assert "Acceleration" in repr(handle)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other.generate(PROMPT, max_new_tokens=20, do_sample=False), expected)
    warm_up(model)


@pytest.mark.parametrize("option", ["stream_interval", "shape_invariant", "prefill_chunk_size"])
def test_options_keep_the_text(load, option):
    model, _ = load()
    drafted = texts(model, PROMPT, FusedDrafter(), max_nodes=7, **{option: 5})
    assert torch.equal(drafted.sequences, texts(model, PROMPT, None, max_nodes=0).sequences)


@torch.no_grad()
def transformers_model(model, path):
    """A model of transformers with the dequantized weights of a file."""
    file, config = GgufFile(path), copy.deepcopy(model.config)
    config._attn_implementation = "eager"
    other = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    modules = modules_of(other) | {"output": other.lm_head}
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name in file.tensors():
        tensor = torch.from_numpy(file.tensor(name))
        module, kind = name.rsplit(".", 1)
        weight = modules[module]._parameters[kind]
        of_layer = module.rpartition(".")[2]
        if config.model_type == "llama" and of_layer in heads:
            # llama.cpp rotates neighbors, transformers halves.
            rows = tensor.view(heads[of_layer], -1, 2, tensor.shape[1])
            tensor = rows.transpose(1, 2)
        offset = int(weight.dim() == 1 and config.model_type == "gemma3_text")
        weight.copy_(tensor.reshape(weight.shape) - offset)
    return other


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_texts_are_those_of_transformers(load, family):
    model, _ = load(family)
    other = transformers_model(model, model.config.name_or_path)
    with torch.no_grad():
        expected = other(PROMPT).logits
    found = model(PROMPT).logits
    assert (found - expected).abs().max() < 3e-5 * expected.std()
    drafted = texts(model, PROMPT, FusedDrafter(), max_nodes=8, do_sample=False)
    settings = {"max_new_tokens": 60, "eos_token_id": 257, "do_sample": False}
    assert torch.equal(drafted.sequences, other.generate(PROMPT, **settings))


class WrongPath(NativeRunner):
    """Commits the last node of a tree instead of that of a path."""

    def verify_rows(self, token_ids, trees):
        self.ends = [len(tree) - 1 for tree in trees]
        return super().verify_rows(token_ids, trees)

    def commit_rows(self, paths):
        ends = zip(paths, self.ends, strict=True)
        super().commit_rows([[*path[:-1], end] if path else path for path, end in ends])


class WrongTree(NativeRunner):
    """Lets each node see the one before it."""

    def verify_rows(self, token_ids, trees):
        from specds import TokenTree

        chains = [TokenTree(tree.token_ids, range(-1, len(tree) - 1)) for tree in trees]
        return super().verify_rows(token_ids, chains)


def test_runners_that_are_wrong_are_found(load):
    model, _ = load()
    found = check_model(model, verification="native")
    assert found.ok
    assert found.max_error == 0.0
    expected = texts(model, PROMPT, None, max_nodes=0).sequences
    options = {"max_nodes": 12, "check_model": False, "verification": WrongPath}
    options |= {"return_dict_in_generate": True, "output_logits": True}
    wrong = texts(model, PROMPT, FusedDrafter(), **options)
    right = texts(model, PROMPT, FusedDrafter(), **options | {"verification": "native"})
    assert right.sequences.tolist() == expected.tolist()
    pairs = zip(wrong.logits, right.logits, strict=False)
    assert not all(torch.equal(one, other) for one, other in pairs)
    with pytest.raises(UnsupportedModelError, match="differ from plain ones"):
        texts(model, PROMPT, FusedDrafter(), verification=WrongTree)


def test_backends_that_do_not_fit_are_refused(load, tiny_model):
    model, _ = load()
    with pytest.raises(UnsupportedModelError, match="use verification='native'"):
        texts(model, PROMPT, None, verification="packed")
    with pytest.raises(UnsupportedModelError, match="by 'native': it has heads"):
        generate(tiny_model[0], PROMPT % 16, verification="native", max_new_tokens=2)
    with pytest.raises(ValueError, match="activations"):
        load(activations="int4")
    with pytest.raises(ValueError, match="beams"):
        model.generate(PROMPT, num_beams=2, max_new_tokens=3)


def test_logits_of_hidden_and_kept_tokens(load):
    model, _ = load()
    whole = model(PROMPT).logits
    padded = torch.nn.functional.pad(PROMPT, (4, 0))
    shown = (torch.arange(padded.shape[1]) >= 4).long()[None]
    found = model(padded, attention_mask=shown).logits
    assert torch.equal(found[:, 4:], whole)
    assert not found[:, :4].any()
    assert torch.equal(model(PROMPT, logits_to_keep=3).logits, whole[:, -3:])
