"""Memory that a GGUF file needs: the same numbers before a load, in its error and in the model."""

import json
import subprocess
import sys

import numpy as np
import pytest

from gguf_families import tiny, write_family
from gguf_models import byte_tokenizer, write_gguf, write_model
from specds import generate, load_gguf
from specds._core import GgufFile, memory_bandwidth
from specds.models import needs as needs_module
from specds.models.needs import Needs, NotEnoughMemoryError, available_bytes, shares_of

KINDS = ("Q4_1", "Q8_0", "Q5_0", "BF16")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "a.gguf"
    extra = byte_tokenizer("{{ messages[0].content }}")
    return write_model(path, "llama", KINDS, vocab=258, extra=extra, context_length=20_000)


def test_sizes_of_the_header_are_those_of_the_loaded_model(path):
    file = GgufFile(path)
    needs = Needs.of(file, 100, 8192)
    model, _ = load_gguf(path, framework="numpy")
    floats = sum(size for _, kind, size in file.tensor_sizes() if kind in ("F32", "BF16"))
    assert needs.weight_bytes == model.weights.num_bytes + floats
    assert (needs.context_length, needs.instructions) == (20_000, model.weights.instructions)
    assert [*needs.cache_bytes] == [100, 8192, 20_000]
    for number, size in needs.cache_bytes.items():
        assert size == model.weights.cache_bytes(number)
    # Three layers, keys and values, two heads of 32 floats.
    assert needs.cache_bytes[8192] == 8192 * 3 * 2 * 2 * 32 * 4
    assert needs.cache_bytes[100] < needs.cache_bytes[8192] < needs.cache_bytes[20_000]
    assert sum(needs.shares.values()) == pytest.approx(1)
    assert {*needs.shares} == {*KINDS, "F32"}
    assert [*needs.shares.values()] == sorted(needs.shares.values(), reverse=True)


def test_only_experts_in_use_and_no_embeddings_count_as_active(path):
    needs = Needs.of(GgufFile(path))
    sizes = {name: size for name, _, size in GgufFile(path).tensor_sizes()}
    assert needs.active_bytes == sum(sizes.values()) - sizes["token_embd.weight"]
    assert needs.tokens_per_s(1e9) == 1e9 / needs.active_bytes
    assert needs.tokens_per_s(1e9, 20_000) < needs.tokens_per_s(1e9)


def test_tensors_of_experts_count_by_the_share_that_a_token_uses(tmp_path):
    fields = {"general.architecture": "some", "some.expert_count": 8, "some.expert_used_count": 2}
    zeros = {
        name: ("F32", (32, rows), np.zeros(32 * rows, dtype="<f4").tobytes())
        for name, rows in (("token_embd.weight", 4), ("output.weight", 4), ("a_exps.weight", 16))
    }
    file = GgufFile(write_gguf(tmp_path / "m.gguf", fields, zeros))
    assert needs_module._active_bytes(file, "some") == 128 * 4 + 128 * 16 // 4
    assert shares_of(file) == {"F32": 1.0}


@pytest.mark.parametrize(
    ("architecture", "num_layers", "channels", "of_memory", "of_step"),
    [("lfm2", 2, 64, 0, 0), ("qwen35", 3, (2 * 2 + 4) * 16, 4 * 16 * 16, (2 * 2 + 4) * 16 + 2 * 4)],
)
def test_recurrent_states_count_whatever_the_number_of_tokens(
    tmp_path, architecture, num_layers, channels, of_memory, of_step
):
    path = write_family(tmp_path / "a.gguf", architecture, tiny(architecture))
    needs = Needs.of(GgufFile(path), 1, 512, 513)
    kernel_size = 3 if architecture == "lfm2" else 4
    # Before a pass, after it and at a mark; and what a pass over 128 tokens records.
    numbers = 3 * ((kernel_size - 1) * channels + of_memory) + 128 * (channels + of_step)
    assert needs.state_bytes == num_layers * numbers * 4
    model, _ = load_gguf(path, framework="numpy")
    assert model.weights.cache_bytes(0) == needs.state_bytes
    pages = [needs.cache_bytes[number] - needs.state_bytes for number in (1, 512, 513)]
    assert pages == [pages[0], pages[0], 2 * pages[0]]
    assert needs.tokens_per_s(1e9, 1) < needs.tokens_per_s(1e9) == 1e9 / needs.active_bytes


def test_load_that_does_not_fit_fails_before_any_work_with_the_numbers(path, monkeypatch, run):
    needs = Needs.of(GgufFile(path), 512)
    least = needs.weight_bytes + needs.cache_bytes[512]
    monkeypatch.setattr(needs_module, "available_bytes", lambda: least)
    assert load_gguf(path, framework="numpy")
    monkeypatch.setattr(needs_module, "available_bytes", lambda: least - 1)
    for framework in ("numpy", "transformers"):
        with pytest.raises(NotEnoughMemoryError) as refused:
            load_gguf(path, framework=framework)
        error = refused.value
        assert isinstance(error, MemoryError)
        assert (error.weight_bytes, error.cache_bytes) == (
            needs.weight_bytes,
            least - needs.weight_bytes,
        )
        assert error.available_bytes == least - 1
        assert all(
            part in str(error) for part in ("of weights", "of keys, values and states", "available")
        )
    code, _, err = run("generate", "--model", path, "a")
    assert code == 1
    assert "not enough memory for the model" in err
    code, out, _ = run("check", path, "--json")
    assert code == 0
    assert json.loads(out)["num_bytes"] == needs.weight_bytes


def test_prompt_whose_states_do_not_fit_fails_before_any_pass(path, monkeypatch):
    model, _ = load_gguf(path, framework="numpy", context_length=1 << 20)
    monkeypatch.setattr(needs_module, "available_bytes", lambda: 10_000_000)
    seen = []
    with pytest.raises(NotEnoughMemoryError, match="for the prompt"):
        generate(
            model, np.zeros((1, 200_000), dtype=np.int64), on_prefill=lambda *_: seen.append(1)
        )
    assert seen == []
    assert generate(model, [1, 2], max_new_tokens=1).sequences.shape == (1, 3)


def test_available_memory_is_the_least_of_machine_and_groups(tmp_path, monkeypatch):
    whole = available_bytes()
    assert whole is None or whole > 1 << 24
    groups = tmp_path / "outer/inner"
    groups.mkdir(parents=True)
    for folder, most, used in ((groups, "max", 7000), (groups.parent, "9000", 5000)):
        (folder / "memory.max").write_text(f"{most}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text("anon 3000\ninactive_file 1000\nactive_file 500\n")
    left = [
        needs_module._left(of, "memory.max", "memory.current")
        for of in (groups, groups.parent, tmp_path)
    ]
    assert left == [None, 9000 - 5000 + 1500, None]
    monkeypatch.setattr(needs_module, "_of_groups", lambda: left)
    assert available_bytes() == 5500


def test_bandwidth_is_measured():
    assert 1e8 < memory_bandwidth() < 1e13


CHECK = """
import sys
from specds.cli import main
sys.argv = ["specds", "check", sys.argv[1], "--context", "1k", "--json"]
try:
    main()
except SystemExit:
    pass
print("torch" in sys.modules, file=sys.stderr)
"""


def test_check_reads_the_header_alone(path, run, monkeypatch):
    done = subprocess.run([sys.executable, "-c", CHECK, path], capture_output=True, text=True)
    assert done.stderr.strip() == "False"
    facts = json.loads(done.stdout)
    assert (facts["accelerated"], facts["verification"]) == (True, "native")
    assert (facts["architecture"], facts["max_context"]) == ("llama", 20_000)
    assert [row["context"] for row in facts["contexts"]] == [1000, 20_000]
    assert all(row["fits"] and row["estimated_tokens_per_s"] > 0 for row in facts["contexts"])
    model, _ = load_gguf(path, framework="numpy")
    assert facts["num_parameters"] == model.weights.config["num_weights"]
    assert facts["num_layers"] == model.weights.config["num_hidden_layers"]
    monkeypatch.setattr("specds.models.packing.ForwardModel", None)  # nothing is packed
    code, out, _ = run("check", path)
    assert code == 0
    assert all(part in out for part in ("Q8_0", "8,192", "20,000", "keys, values", "yes"))
    assert "--context is a number" in run("check", "demo-tiny", "--context", "1k")[2]
    monkeypatch.setattr(needs_module, "available_bytes", lambda: 1000)
    assert "NO" in run("check", path)[1]
