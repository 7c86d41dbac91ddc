"""Families of models in GGUF files: logits and texts of transformers, on random weights."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gguf_families import FAMILIES, MIXTURES, RECURRENT, VOCAB_SIZE, tiny, write_family
from gguf_models import core_of
from models import decodes_alike, mixed_drafter, oracle_drafter
from shaped_models import forked
from specds import Chat, FusedDrafter, generate, load_gguf
from specds._core import ForwardCache, ForwardModel, GgufFile
from specds.transformers.verify.support import check_model

TOKENS = np.random.default_rng(5).integers(0, 256, 100)
ALL = FAMILIES | MIXTURES


@pytest.fixture(scope="module", params=ALL)
def of_family(request, tmp_path_factory):
    """The name, the model of transformers, and its file."""
    model = tiny(request.param)
    path = tmp_path_factory.mktemp("family") / "model.gguf"
    return request.param, model, write_family(path, request.param, model)


def of_each(names):
    return pytest.mark.parametrize("of_family", names, indirect=True)


@pytest.mark.parametrize("instructions", ["auto", "avx2", "portable"])
def test_logits_are_those_of_transformers(of_family, instructions):
    name, model, path = of_family
    with torch.no_grad():
        expected = model(torch.from_numpy(TOKENS)[None]).logits[0].numpy()
    core = core_of(path, instructions)
    logits = core.forward(ForwardCache(core), [(0, TOKENS, None, len(TOKENS))])
    assert expected.std() > 0.1
    # The delta rule of transformers, by chunks, is further from float64.
    allowed = 1e-3 if name.startswith("qwen3") and name in RECURRENT else 1e-4
    np.testing.assert_allclose(logits, expected, atol=allowed * expected.std())


@of_each([name for name in ALL if name != "phi3, long"])
@pytest.mark.parametrize("activations", ["float32", "int8"])
def test_logits_are_equal_to_the_bit_in_any_company(of_family, activations):
    core, options = core_of(of_family[2]), {"activations": activations}
    alone, cache = [], ForwardCache(core)
    for token in TOKENS:
        alone.append(core.forward(cache, [(0, [token], None, 1)], **options)[0])
        cache.commit(0, [0])
    for num_threads in (1, 2, 3):
        cache = ForwardCache(core, 2)
        inputs = [(1, TOKENS[:70], None, 70), (0, TOKENS[:9], None, 9)]
        together = core.forward(cache, inputs, num_threads=num_threads, **options)
        np.testing.assert_array_equal(together, [*alone[:70], *alone[:9]])
    cache.commit(1, range(70))
    if core.takes_trees:
        tree, parents, path = forked(TOKENS[70:])
        logits = core.forward(cache, [(1, tree, parents, len(tree))], num_threads=3, **options)
        np.testing.assert_array_equal(logits[path], alone[70:])
        cache.commit(1, path[:10])
        logits = core.forward(cache, [(1, TOKENS[80:], None, 20)], num_threads=3, **options)
        np.testing.assert_array_equal(logits, alone[80:])


@pytest.mark.parametrize("family", ["gemma2", "gemma3n", "gemma4"])
def test_states_of_a_row_continue_in_another_cache(tmp_path, family):
    core = ForwardModel(GgufFile(write_family(tmp_path / "model.gguf", family, tiny(family))))
    cache, other = ForwardCache(core), ForwardCache(core)
    core.forward(cache, [(0, TOKENS[:70], None, 0)])
    cache.commit(0, range(70))
    other.append(0, cache.states(0))
    rest = [(0, TOKENS[70:], None, 30)]
    np.testing.assert_array_equal(core.forward(other, rest), core.forward(cache, rest))


@of_each(MIXTURES)
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


def test_texts_with_drafts_are_those_of_transformers(of_family):
    _, model, path = of_family
    tensors, arrays = load_gguf(path)[0], load_gguf(path, framework="numpy")[0]
    ids, size = torch.from_numpy(TOKENS[:21])[None], tensors.vocab_size
    mode = {"max_new_tokens": 32, "do_sample": False}
    expected = model.generate(ids, **mode, eos_token_id=tensors.config.eos_token_id).tolist()
    assert tensors.generate(ids, **mode).tolist() == expected
    num_accepted = 0
    for drafter in (
        lambda text: mixed_drafter(text, size),
        lambda text: oracle_drafter(text, vocab_size=size),
        lambda text: oracle_drafter(text, 2, size),
    ):
        output = decodes_alike(tensors, drafter, ids=ids, mode=mode)
        assert output.sequences.tolist() == expected
        num_accepted += output.stats.num_accepted_tokens
        of_arrays = generate(arrays, ids.numpy(), drafter(expected[0]), max_nodes=8, **mode)
        assert of_arrays.sequences.tolist() == expected
    assert num_accepted > 10
    found = check_model(tensors, verification="native")
    assert (found.ok, found.max_error) == (True, 0)


@of_each(FAMILIES)
def test_configuration_is_that_of_the_model(of_family):
    family, model, path = of_family
    config = model.config
    found = load_gguf(path, framework="transformers")[0].config
    assert found.model_type == config.model_type
    own = {
        "eos_token_id",
        "transformers_version",
        "architectures",
        "dtype",
        "pad_token_id",
        "_name_or_path",
        "allow_global_per_layer_attribute_access",
    }
    is_phi3 = family.startswith("phi3")
    own |= {"rope_parameters"} if family in ("llama", "olmo3") or is_phi3 else set()
    own |= {"original_max_position_embeddings"} if is_phi3 else set()
    stated, read = _plain(config.to_dict()), _plain(found.to_dict())
    assert {name: read.get(name) for name in stated.keys() - own} == {
        name: stated[name] for name in stated.keys() - own
    }


@pytest.fixture
def long(tmp_path):
    """A model whose texts of more than 32 tokens have other rotations, and the core of its file."""
    model = tiny("phi3, long")
    path = write_family(tmp_path / "model.gguf", "phi3, long", model)
    return model, ForwardModel(GgufFile(path))


def test_rotations_are_chosen_by_the_length_of_a_text(long):
    model, core = long
    assert core.short_context == 32
    states = ForwardCache(core, 2)
    for length in (20, 31, 32, 33, 34, 60, 33, 32, 10, 40):
        with torch.no_grad():
            expected = model(torch.from_numpy(TOKENS[:length])[None]).logits[0, -1].numpy()
        fresh = core.forward(ForwardCache(core), [(0, TOKENS[:length], None, 1)])
        np.testing.assert_allclose(fresh[0], expected, atol=1e-4 * expected.std())
        # The other row continues at any length, also back below that of short texts.
        states.truncate(0, min(states.length(0), length - 1))
        rest = TOKENS[states.length(0) : length]
        logits = core.forward(states, [(0, rest, None, 1)])
        np.testing.assert_array_equal(logits, fresh)
        states.commit(0, range(len(rest)))
        states.copy(0, 1)
        again = TOKENS[length : length + 1]
        copied = core.forward(states, [(1, again, None, 1), (0, again, None, 1)])
        np.testing.assert_array_equal(copied[0], copied[1])


def test_trees_above_the_short_context_have_long_rotations(long):
    _, core = long
    whole = core.forward(ForwardCache(core), [(0, TOKENS[:34], None, 4)])
    states = ForwardCache(core)
    core.forward(states, [(0, TOKENS[:30], None, 1)])
    states.commit(0, range(30))
    tree, parents = [3, *TOKENS[30:34], 7], [-1, -1, 1, 2, 3, 2]
    logits = core.forward(states, [(0, tree, parents, 6)])
    np.testing.assert_array_equal(logits[1:5], whole)
    states.commit(0, [1, 2])
    # Its path is not above it any more: all tokens are computed again.
    short = core.forward(ForwardCache(core), [(0, TOKENS[:32], None, 1)])
    assert np.abs(short[0] - whole[1]).max() > 1e-2 * short.std()
    states.truncate(0, 31)
    np.testing.assert_array_equal(core.forward(states, [(0, TOKENS[31:32], None, 1)]), short)


def test_pass_that_fails_while_it_computes_again_keeps_the_states(long):
    _, core = long
    states = ForwardCache(core)
    core.forward(states, [(0, TOKENS[:32], None, 1)])
    states.commit(0, range(32))

    def stop(_):
        raise KeyboardInterrupt

    expected = core.forward(states, [(0, TOKENS[32:33], None, 1)])
    states.truncate(0, 31)
    before = core.forward(states, [(0, TOKENS[31:32], None, 1)])
    for wrong in ([], [-1]):
        with pytest.raises((KeyboardInterrupt, ValueError)):
            core.forward(states, [(0, [5, *wrong] * 20, [-1, *range(39)], 1)], poll=stop)
    np.testing.assert_array_equal(core.forward(states, [(0, TOKENS[31:32], None, 1)]), before)
    states.commit(0, [0])
    np.testing.assert_array_equal(core.forward(states, [(0, TOKENS[32:33], None, 1)]), expected)
    for change in (lambda: states.states(0), lambda: states.append(0, np.zeros(8, np.float32))):
        with pytest.raises(ValueError, match="whose rotations depend on the length"):
            change()


@pytest.mark.parametrize("num_tokens", [20, 32, 33, 50])
def test_drafts_keep_to_one_side_of_the_short_context(tmp_path, long, num_tokens):
    model, path = long[0], tmp_path / "model.gguf"
    native, _ = load_gguf(path, framework="numpy")
    ids = TOKENS[None, :num_tokens]
    mode = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None}
    expected = model.generate(torch.from_numpy(ids), **mode)[0].tolist()
    for max_nodes in (0, 4, 16):
        drafter = oracle_drafter(expected, vocab_size=native.vocab_size)
        options = {"stream_interval": 2} if max_nodes == 4 else {}
        output = generate(native, ids, drafter, max_nodes=max_nodes, **options, **mode)
        assert output.sequences[0].tolist() == expected
        assert max_nodes == 0 or output.stats.num_accepted_tokens > 10


@pytest.mark.parametrize(
    ("family", "fields", "missing", "reason"),
    [
        ("phi3, long", {"rope.scaling.type": "dynamic"}, (), 'scales rotations by "dynamic"'),
        ("phi3, long", {"rope.scaling.type": "yarn"}, (), "scales rotations in two ways"),
        ("phi3, long", {}, ("rope_factors_long.weight",), "no tensor rope_factors_long.weight"),
        ("gemma3n", {"altup.active_idx": 1}, (), "another stream of states"),
        ("gemma3n", {"activation_sparsity_scale": 1.0}, (), "not one number for each layer"),
        ("gemma3n", {}, ("blk.0.laurel_l.weight",), "has no tensor blk.0.laurel_l.weight"),
        (
            "gemma3n",
            {"embedding_length_per_layer_input": 64},
            (),
            "has per_layer_token_embd.weight",
        ),
        ("gemma4", {"attention.shared_kv_layers": 6}, (), "share keys that no layer has"),
        ("gemma4", {"rope.dimension_count_swa": 32}, (), "more dimensions than heads have"),
        ("gemma4", {"attention.head_count_kv": [2, 2, 2, 2, 1, 2]}, (), "keys of another shape"),
    ],
)
def test_files_that_are_not_computed_are_rejected(tmp_path, family, fields, missing, reason):
    path, architecture = tmp_path / "model.gguf", FAMILIES[family].architecture
    fields = {f"{architecture}.{name}": value for name, value in fields.items()}
    write_family(path, family, tiny(family), fields, missing)
    with pytest.raises(ValueError, match=reason):
        ForwardModel(GgufFile(path))


def _plain(value):
    """Round numbers to the precision of a file."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return float(np.float32(value)) if isinstance(value, float) else value


@pytest.mark.parametrize("architecture", ["lfm2", "qwen35"])
def test_recurrent_states_return_to_marks_only(tmp_path, architecture):
    path = write_family(tmp_path / "model.gguf", architecture, tiny(architecture))
    core, tokens = core_of(path), TOKENS[:60]
    assert not core.takes_trees
    whole = core.forward(ForwardCache(core), [(0, tokens, None, len(tokens))])
    cache = ForwardCache(core)
    for start, end in ((0, 20), (20, 40)):
        core.forward(cache, [(0, tokens[start:end], None, 0)])
        cache.commit(0, range(end - start))
        if end == 20:
            cache.mark(0)
    assert [cache.kept(0, length) for length in (50, 40, 39, 20, 19)] == [40, 40, 20, 20, 0]
    with pytest.raises(ValueError, match="`length` must be 20 or less"):
        cache.truncate(0, 30)
    for length in (40, 20, 20, 0):
        cache.truncate(0, length)
        logits = core.forward(cache, [(0, tokens[length:], None, 60 - length)])
        np.testing.assert_array_equal(logits, whole[length:])
    assert cache.kept(0, 20) == 0
    with pytest.raises(ValueError, match="`parents` must be those of a chain"):
        core.forward(cache, [(0, [1, 2, 3], [-1, 0, 0], 1)])
    core.forward(cache, [(0, [1, 2, 3], None, 1)])
    with pytest.raises(ValueError, match="`path` must be the first tokens"):
        cache.commit(0, [0, 2])
    core.forward(cache, [(0, np.resize(tokens, 200), None, 1)])
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
