"""Forward passes of small random models: against numpy, and against themselves in other company."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gguf_models import BLOCKS, core_of, write_gguf, write_model
from shaped_reference import reference_logits
from specds._core import FormatError, ForwardCache, ForwardModel, GgufFile

TOKENS = np.random.default_rng(7).integers(0, 80, 150)
FAMILIES = {
    "llama": {},
    "llama, scaled": {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0},
    "llama, windows": {"attention.sliding_window": 20},
    "qwen2": {},
    "qwen3": {},
    "gemma3": {"attention.sliding_window": 20, "final_logit_softcapping": 5.0},
}
INSTRUCTIONS = ("auto", "avx2", "portable")


def model_of(path, family="llama", kinds=("F32",), instructions="auto", **more):
    file = write_model(path / "model.gguf", family.split(",")[0], kinds, **FAMILIES[family], **more)
    return core_of(file, instructions)


def chain(model, tokens, num_logits=None, **options):
    num_logits = len(tokens) if num_logits is None else num_logits
    return model.forward(ForwardCache(model), [(0, tokens, None, num_logits)], **options)


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_each_family_are_those_of_numpy(tmp_path, family, instructions):
    model = model_of(tmp_path, family, instructions=instructions)
    expected = reference_logits(GgufFile(tmp_path / "model.gguf"), TOKENS)
    np.testing.assert_allclose(chain(model, TOKENS), expected, atol=3e-5 * expected.std())


@pytest.mark.parametrize("kind", BLOCKS)
def test_logits_of_each_type_are_those_of_numpy(tmp_path, kind):
    model = model_of(tmp_path, kinds=(kind,), hidden=256, wide=256, heads=8)
    expected = reference_logits(GgufFile(tmp_path / "model.gguf"), TOKENS[:20])
    np.testing.assert_allclose(chain(model, TOKENS[:20]), expected, atol=1e-4 * expected.std())
    error = chain(model, TOKENS[:20], activations="int8") - expected
    assert error.std() < 0.1 * expected.std()


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("window", [8, 20, 70])
def test_tree_may_be_deeper_than_a_window(tmp_path, window, instructions):
    options = {"attention.sliding_window": window}
    file = write_model(tmp_path / "model.gguf", "llama", ("Q4_0",), **options)
    model = ForwardModel(GgufFile(file), instructions=instructions)
    expected = chain(model, TOKENS)
    cache = ForwardCache(model)
    model.forward(cache, [(0, TOKENS[:50], None, 0)])
    cache.commit(0, range(50))
    tree, parents, path = [], [], []
    for token in TOKENS[50:]:  # over the border of a page of 64 slots
        parent = path[-1] if path else -1
        tree += [3, token]
        parents += [parent, parent]
        path.append(len(tree) - 1)
    logits = model.forward(cache, [(0, tree, parents, len(tree))])
    np.testing.assert_array_equal(logits[path], expected[50:])


def test_more_heads_than_dimensions_are_refused(tmp_path):
    file = write_model(tmp_path / "model.gguf", "llama", **{"attention.head_count": 128})
    metadata = GgufFile(file)
    names = [name for name in metadata.keys() if not name.endswith("length")]  # noqa: SIM118
    fields = {name: metadata[name] for name in names}
    fields["llama.embedding_length"] = 64
    write_gguf(file, fields, {})
    with pytest.raises(FormatError, match="heads"):
        ForwardModel(GgufFile(file))


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("activations", ["float32", "int8"])
@pytest.mark.parametrize("family", ["llama", "llama, windows", "gemma3"])
def test_logits_are_equal_to_the_bit_in_any_company(tmp_path, family, activations, instructions):
    model = model_of(tmp_path, family, ("Q4_1", "Q8_0", "Q5_0"), instructions)
    options = {"activations": activations}
    cache_type = {"float32": "float32", "int8": "float16"}[activations]
    alone, cache = [], ForwardCache(model, 1, cache_type)
    for token in TOKENS[:80]:
        alone.append(model.forward(cache, [(0, [token], None, 1)], **options)[0])
        cache.commit(0, [0])
    alone = np.array(alone)
    for num_threads in (1, 2, 3):
        inputs = [(0, TOKENS[:80], None, 80)]
        cache = ForwardCache(model, 1, cache_type)
        together = model.forward(cache, inputs, num_threads=num_threads, **options)
        np.testing.assert_array_equal(together, alone)

    # A tree whose longest path is the text, in a row of a batch.
    cache = ForwardCache(model, 2, cache_type)
    model.forward(cache, [(1, TOKENS[:60], None, 0), (0, TOKENS[:7], None, 0)], **options)
    cache.commit(1, range(60))
    cache.commit(0, range(7))
    tree, parents, path = [], [], []
    for token in TOKENS[60:70]:
        parent = path[-1] if path else -1
        tree += [3, 5, token]
        parents += [parent, len(tree) - 3, parent]
        path.append(len(tree) - 1)
    inputs = [(0, TOKENS[7:10], None, 3), (1, tree, parents, len(tree))]
    logits = model.forward(cache, inputs, num_threads=2, **options)
    np.testing.assert_array_equal(logits[:3], alone[7:10])
    np.testing.assert_array_equal(logits[3:][path], alone[60:70])
    cache.commit(1, path)
    assert [cache.length(row) for row in (0, 1)] == [7, 70]
    logits = model.forward(cache, [(1, TOKENS[70:80], None, 10)], **options)
    np.testing.assert_array_equal(logits, alone[70:])
    cache.truncate(1, 65)
    logits = model.forward(cache, [(1, TOKENS[65:80], None, 15)], **options)
    np.testing.assert_array_equal(logits, alone[65:])


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_cache_of_float16_holds_the_nearest_halves(tmp_path, instructions):
    model = model_of(tmp_path, instructions=instructions)
    width = model.config["num_key_value_heads"] * model.config["head_dim"]
    states = np.random.default_rng(3).standard_normal((3, 2, 100, width)).astype("f4")
    # Ties, numbers of few bits, zeros, and numbers beyond halves.
    states[0, 0, :40] *= np.exp2(np.arange(-30, 10, dtype="f4"))[:, None]
    states[0, 1, :2] = [[1 + 2**-11], [1 + 3 * 2**-11]]
    states[0, 1, 2:4] = [[-0.0], [2**-25]]
    states[0, 1, 4:6] = [[1e6], [-65_519.99]]
    halves = ForwardCache(model, 1, "float16")
    halves.append(0, states)
    held = halves.states(0)
    expected = states.clip(-65_504, 65_504).astype("f2").astype("f4").ravel()
    np.testing.assert_array_equal(held.view("u4"), expected.view("u4"))

    rounded, exact = ForwardCache(model), ForwardCache(model)
    states = states[:, :, 40:].copy()
    exact.append(0, states)
    rounded.append(0, states.astype("f2").astype("f4"))
    halves.truncate(0, 0)
    halves.append(0, states)
    logits, of_rounded, of_exact = (
        model.forward(cache, [(0, TOKENS[:9], None, 9)]) for cache in (halves, rounded, exact)
    )
    spread = of_exact.std()
    np.testing.assert_allclose(logits, of_rounded, atol=2e-3 * spread)
    assert 0 < np.abs(logits - of_exact).max() < 1e-2 * spread


def test_cache_of_float16_takes_half_the_memory(tmp_path):
    model = model_of(tmp_path)
    sizes = [model.cache_bytes(1000, kind) for kind in ("float32", "float16")]
    assert sizes == [model.cache_bytes(1000), model.cache_bytes(1000) // 2]
    with pytest.raises(ValueError, match='must be `float32` or `float16`, not "q8_0"'):
        ForwardCache(model, 1, "q8_0")


def test_logits_of_a_long_prompt_are_those_of_its_parts(tmp_path):
    model = model_of(tmp_path)
    prompt = np.resize(TOKENS, 600)
    logits = chain(model, prompt, 5)
    cache = ForwardCache(model)
    for start in range(0, 600, 100):
        part = model.forward(cache, [(0, prompt[start : start + 100], None, 5)])
        cache.commit(0, range(100))
    np.testing.assert_array_equal(logits, part)


def test_simultaneous_passes_do_not_wait_for_each_other_or_change_logits(tmp_path):
    model = model_of(tmp_path)
    alone = chain(model, TOKENS)
    with ThreadPoolExecutor(6) as pool:
        numbers = [2, 3, 4] * 8
        for logits in pool.map(lambda number: chain(model, TOKENS, num_threads=number), numbers):
            np.testing.assert_array_equal(logits, alone)


def test_a_pass_waits_for_its_cache_without_the_interpreter(tmp_path):
    model = model_of(tmp_path)
    cache, long = ForwardCache(model), np.resize(TOKENS, 4_000)
    with ThreadPoolExecutor(2) as pool:
        passes = [pool.submit(model.forward, cache, [(0, long, None, 1)]) for _ in range(2)]
        num_steps = 0
        while not passes[0].done():
            num_steps += 1
            time.sleep(0.001)
        assert num_steps > 20
        np.testing.assert_array_equal(*(each.result() for each in passes))


FORKS = """
import os, signal, sys, threading, time
import numpy as np
from specds._core import ForwardCache, ForwardModel, GgufFile
model = ForwardModel(GgufFile(sys.argv[1]))
shared, tokens, stop = ForwardCache(model), list(range(30)) * 4, False
def passes(cache):
    while not stop:
        model.forward(cache, [(0, tokens, None, 1)], num_threads=2)
caches = shared, ForwardCache(model)
threads = [threading.Thread(target=passes, args=(cache,)) for cache in caches]
for thread in threads:
    thread.start()
expected = model.forward(ForwardCache(model), [(0, tokens, None, 1)])
codes = []
for number in range(30):
    time.sleep(number / 3000)
    if (child := os.fork()) == 0:
        signal.alarm(10)
        own = model.forward(ForwardCache(model), [(0, tokens, None, 1)], num_threads=2)
        code = 0 if np.array_equal(own, expected) else 3
        try:
            code |= not np.array_equal(model.forward(shared, [(0, tokens, None, 1)]), expected)
        except RuntimeError as error:
            code |= 4 if "when the process was forked: make a new" in str(error) else 8
        os._exit(code)
    codes.append(os.waitpid(child, 0)[1])
stop = True
for thread in threads:
    thread.join()
print(sorted({os.waitstatus_to_exitcode(code) for code in codes}))
"""


def test_fork_during_a_pass_ends_or_raises(tmp_path):
    file = write_model(tmp_path / "model.gguf", "llama", ("Q4_0",))
    command = [sys.executable, "-W", "ignore", "-c", FORKS, str(file)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert run.stdout in ("[0, 4]\n", "[4]\n"), run.stdout + run.stderr


def test_portable_logits_are_those_of_avx2(tmp_path):
    portable = chain(model_of(tmp_path, instructions="portable"), TOKENS)
    vectors = chain(model_of(tmp_path, instructions="avx2"), TOKENS)
    np.testing.assert_allclose(portable, vectors, atol=1e-5 * vectors.std())


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ([(1, [1], None, 1)], "`row`"),
        ([(0, [1], None, 1), (0, [1], None, 1)], "`row`"),
        ([(0, [80], None, 1)], "`tokens` hold 80"),
        ([(0, [-1], None, 1)], "`tokens` holds -1"),
        ([(0, [1], None, 2)], "`num_logits`"),
        ([(0, [1, 2], [-1], 1)], "`parents` must be as many"),
        ([(0, [1, 2], [-1, 1], 1)], "`parents` must be before"),
        ([(0, [1, 2], [-1, -2], 1)], "`parents` must be before"),
    ],
)
def test_wrong_inputs_are_named(tmp_path, inputs, reason):
    model = model_of(tmp_path)
    cache = ForwardCache(model)
    with pytest.raises(ValueError, match=reason):
        model.forward(cache, inputs)
    for wrong in ([0], [1, 0], [5]):
        with pytest.raises(ValueError, match="`path`"):
            cache.commit(0, wrong)
    with pytest.raises(ValueError, match="`length`"):
        cache.truncate(0, 1)


def test_forward_of_no_tokens_gives_no_logits(tmp_path):
    model = model_of(tmp_path)
    assert model.forward(ForwardCache(model), [(0, [], None, 0)]).shape == (0, 80)
    assert model.forward(ForwardCache(model), []).shape == (0, 80)


def test_metadata_is_read(tmp_path):
    model_of(tmp_path, "gemma3")
    file = GgufFile(tmp_path / "model.gguf")
    assert file["gemma3.attention.head_count"] == 4
    assert file["general.architecture"] == "gemma3"
    assert "absent" not in file
    with pytest.raises(KeyError):
        file["absent"]
    assert len(file.keys()) == 13


def test_unknown_architectures_and_tensors_are_named_in_the_error(tmp_path):
    path = write_model(tmp_path / "model.gguf", "llama")
    contents = path.read_bytes()
    for old, new, reason in [
        (b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0mamba", 'architecture "mamba"'),
        (b"blk.0.attn_q.weight", b"blk.0.attn_p.weight", "no tensor blk.0.attn_q.weight"),
        (b"blk.2.attn_q.weight", b"blk.3.attn_q.weight", "no tensor blk.2.attn_q.weight"),
    ]:
        path.write_bytes(contents.replace(old, new))
        with pytest.raises(FormatError, match=reason):
            ForwardModel(GgufFile(path))
    write_gguf(path, {"general.architecture": "llama"}, {})
    with pytest.raises(FormatError, match="llama"):
        ForwardModel(GgufFile(path))


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_weights_packed_by_threads_are_those_of_one(tmp_path, num_threads):
    file = write_model(tmp_path / "model.gguf", "llama", ("Q4_1", "Q8_0"), wide=224, vocab=3001)
    packed = ForwardModel(GgufFile(file), num_threads=num_threads)
    expected = chain(ForwardModel(GgufFile(file)), TOKENS[:9])
    np.testing.assert_array_equal(chain(packed, TOKENS[:9]), expected)
