"""Mixtures of experts and recurrent models: logits and texts against transformers."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gguf_families import MIXTURES, RECURRENT, VOCAB_SIZE, tiny, write_family
from models import mixed_drafter
from specds import Chat, FusedDrafter, generate, load_gguf
from specds._core import ForwardCache, ForwardModel, GgufFile
from specds.transformers.verify.support import check_model

TOKENS = np.random.default_rng(8).integers(0, VOCAB_SIZE, 60)
INSTRUCTIONS = ("auto", "avx2", "portable")


def core_of(path, instructions="auto"):
    try:
        return ForwardModel(GgufFile(path), instructions=instructions)
    except ValueError as error:
        if "does not have" not in str(error):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="module", params=MIXTURES)
def of_family(request, tmp_path_factory):
    """The architecture, the model of transformers, and its file."""
    model = tiny(request.param)
    path = tmp_path_factory.mktemp("mixture") / "model.gguf"
    return request.param, model, write_family(path, request.param, model)


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_logits_are_those_of_transformers(of_family, instructions):
    architecture, model, path = of_family
    with torch.no_grad():
        expected = model(torch.from_numpy(TOKENS)[None]).logits[0].numpy()
    core = core_of(path, instructions)
    logits = core.forward(ForwardCache(core), [(0, TOKENS, None, len(TOKENS))])
    # The delta rule of transformers, by chunks, is further from float64.
    allowed = 1e-3 if architecture.startswith("qwen3") and architecture in RECURRENT else 1e-4
    np.testing.assert_allclose(logits, expected, atol=allowed * expected.std())


@pytest.mark.parametrize("activations", ["float32", "int8"])
def test_logits_are_equal_to_the_bit_in_any_company(of_family, activations):
    core, options = core_of(of_family[2]), {"activations": activations}
    alone, cache = [], ForwardCache(core)
    for token in TOKENS:
        alone.append(core.forward(cache, [(0, [token], None, 1)], **options)[0])
        cache.commit(0, [0])
    for num_threads in (1, 2, 3):
        cache = ForwardCache(core, 2)
        inputs = [(1, TOKENS[:20], None, 20), (0, TOKENS, None, len(TOKENS))]
        together = core.forward(cache, inputs, num_threads=num_threads, **options)
        np.testing.assert_array_equal(together, [*alone[:20], *alone])


def test_rejected_tokens_leave_no_trace(of_family):
    """Chains of which some tokens are accepted, in two rows, of which one is copied."""
    core, random = core_of(of_family[2]), np.random.default_rng(3)
    whole = core.forward(ForwardCache(core), [(0, TOKENS, None, len(TOKENS))])
    cache, lengths = ForwardCache(core, 3), [0, 0]
    while min(lengths) < len(TOKENS):
        inputs, accepted = [], []
        for row, start in enumerate(lengths):
            right = int(min(random.integers(0, 5), len(TOKENS) - start))
            wrong = random.integers(0, VOCAB_SIZE, random.integers(0, 4))
            tokens = [*TOKENS[start : start + right], *wrong]
            inputs.append((row, tokens, range(-1, len(tokens) - 1), len(tokens)))
            accepted.append(right)
        logits = core.forward(cache, inputs, num_threads=2)
        for (row, tokens, *_), right in zip(inputs, accepted, strict=True):
            of_row, logits = logits[: len(tokens)], logits[len(tokens) :]
            start = lengths[row]
            np.testing.assert_array_equal(of_row[:right], whole[start : start + right])
            cache.commit(row, range(right))
            lengths[row] += right
        cache.copy(1, 2)
        rest = TOKENS[lengths[1] :]
        if len(rest):
            logits = core.forward(cache, [(2, rest, None, len(rest))])
            np.testing.assert_array_equal(logits, whole[lengths[1] :])


@pytest.mark.parametrize("architecture", ["lfm2", "qwen35"])
def test_recurrent_states_return_to_marks_only(tmp_path, architecture):
    path = write_family(tmp_path / "model.gguf", architecture, tiny(architecture))
    core = core_of(path)
    assert not core.takes_trees
    whole = core.forward(ForwardCache(core), [(0, TOKENS, None, len(TOKENS))])
    cache = ForwardCache(core)
    for start, end in ((0, 20), (20, 40)):
        core.forward(cache, [(0, TOKENS[start:end], None, 0)])
        cache.commit(0, range(end - start))
        if end == 20:
            cache.mark(0)
    assert [cache.kept(0, length) for length in (50, 40, 39, 20, 19)] == [40, 40, 20, 20, 0]
    with pytest.raises(ValueError, match="`length` must be 20 or less"):
        cache.truncate(0, 30)
    for length in (40, 20, 20, 0):
        cache.truncate(0, length)
        logits = core.forward(cache, [(0, TOKENS[length:], None, 60 - length)])
        np.testing.assert_array_equal(logits, whole[length:])
    assert cache.kept(0, 20) == 0
    with pytest.raises(ValueError, match="`parents` must be those of a chain"):
        core.forward(cache, [(0, [1, 2, 3], [-1, 0, 0], 1)])
    core.forward(cache, [(0, [1, 2, 3], None, 1)])
    with pytest.raises(ValueError, match="`path` must be the first tokens"):
        cache.commit(0, [0, 2])
    core.forward(cache, [(0, np.resize(TOKENS, 200), None, 1)])
    with pytest.raises(ValueError, match="`path` must be the first tokens"):
        cache.commit(0, range(199))
    cache.commit(0, range(200))
    for wrong in (lambda: cache.states(0), lambda: cache.append(0, np.zeros(8, np.float32))):
        with pytest.raises(ValueError, match="`states` cannot be taken"):
            wrong()


PROMPT = np.frombuffer(b"one two three one two three one two", np.uint8).astype(np.int64)[None]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + ' ' + message['content'] "
    "+ '<|im_end|>' }}{% endfor %}{{ '<|im_start|>' if add_generation_prompt else '' }}"
)


def test_texts_are_those_of_transformers_with_and_without_drafts(of_family):
    _, model, path = of_family
    settings = {"max_new_tokens": 50, "do_sample": False, "eos_token_id": 1}
    expected = model.generate(torch.from_numpy(PROMPT), **settings)[0].tolist()
    arrays, tensors = load_gguf(path, framework="numpy")[0], load_gguf(path)[0]
    drafter = mixed_drafter(expected)
    drafter.vocab_size = VOCAB_SIZE
    for core, prompt in ((arrays, PROMPT), (tensors, torch.from_numpy(PROMPT))):
        drafted = generate(core, prompt, drafter, max_nodes=8, **settings)
        assert drafted.sequences[0].tolist() == expected
        assert drafted.stats.num_draft_tokens > drafted.stats.num_accepted_tokens > 0
        plain = generate(core, prompt, None, max_nodes=0, **settings)
        assert plain.sequences[0].tolist() == expected
    assert tensors.generate(torch.from_numpy(PROMPT), **settings)[0].tolist() == expected
    found = check_model(tensors, verification="native")
    assert found.ok
    assert found.max_error == 0


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("framework", ["numpy", "transformers"])
@pytest.mark.parametrize("architecture", ["lfm2", "qwen35"])
def test_conversations_continue_from_recurrent_states(tmp_path, architecture, framework, drops):
    """Templates that change earlier replies return to the last message, others to its end."""
    template = TEMPLATE.replace("['content']", "['content'][:9]") if drops else TEMPLATE
    more = {"tokenizer.chat_template": template}
    path = write_family(tmp_path / "model.gguf", architecture, tiny(architecture), more)
    model, tokenizer = load_gguf(path, framework=framework)
    settings = {"max_new_tokens": 12, "do_sample": False}
    chats = [Chat(model, tokenizer, FusedDrafter(), max_nodes=6, **settings)]
    chats += [Chat(model, tokenizer, FusedDrafter(), max_nodes=0, **settings)]
    for text in ("one two three", "two three one", "three one two"):
        fresh = Chat(model, tokenizer, None, messages=chats[0].messages, max_nodes=0, **settings)
        expected = fresh.send(text)
        assert [chat.send(text) for chat in chats] == [expected] * 2
        assert chats[0]._cache.mark_at > 0
    assert chats[0].stats.num_draft_tokens > 0


@pytest.mark.parametrize("architecture", ["lfm2", "qwen35"])
def test_failed_request_leaves_states_that_a_later_one_continues(tmp_path, architecture):
    path = write_family(tmp_path / "model.gguf", architecture, tiny(architecture))
    model, _ = load_gguf(path, framework="numpy")
    settings = {"max_new_tokens": 12, "do_sample": False, "return_dict_in_generate": True}
    cache = model.cache_class()
    first = generate(model, PROMPT, FusedDrafter(), max_nodes=4, cache=cache, **settings)

    def fail(ids, _):
        raise RuntimeError("stop")

    longer = np.concatenate([first.sequences, PROMPT], axis=1)
    with pytest.raises(RuntimeError, match="stop"):
        generate(model, longer, FusedDrafter(), cache=cache, stopping_criteria=[fail], **settings)
    assert cache.get_seq_length() <= first.sequences.shape[1]
    again = generate(model, longer, FusedDrafter(), max_nodes=4, cache=cache, **settings)
    fresh = generate(model, longer, None, max_nodes=0, **settings)
    assert again.sequences.tolist() == fresh.sequences.tolist()


@pytest.mark.slow
def test_layer_of_a_real_width_runs():
    """Qwen3-30B-A3B's; the program compares passes of one token and of several."""
    root = Path(__file__).parents[2]
    paths = (root / "python", root / "tests/helpers", os.environ.get("PYTHONPATH", ""))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, root / "benches/expert_passes.py", "--repetitions", "1"]
    report = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert report.returncode == 0, report.stderr
    assert "the same, int8" in report.stdout
