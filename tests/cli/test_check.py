"""The commands `check` and `list`, the environment, and the lines of a call without arguments."""

import io
import json
import shutil
import struct
import subprocess
import sys

import pytest
import transformers

from gguf_models import write_gguf
from models import HYBRIDS, build
from specds import Memory
from specds.models.gguf import GgufVocabulary
from specds.models.resolve import ModelRef


def test_check_of_supported_model_reports_method_and_sizes(run):
    code, out, _ = run("check", "demo-tiny", "--json")
    facts = json.loads(out)
    assert code == 0
    assert (facts["accelerated"], facts["verification"]) == (True, "packed")
    assert (
        facts["slower_because"]
        == "it has heads whose size is not a multiple of 16, from 16 to 1024"
    )
    assert (facts["device"], facts["dtype"], facts["vocab_size"]) == ("cpu", "float32", 4096)
    assert "accelerated" in run("check", "demo-tiny")[1]


def test_check_of_unsupported_model_fails_with_reason(run, tmp_path, demo_tokenizer):
    config = transformers.BloomConfig(vocab_size=4096, hidden_size=16, n_layer=1, n_head=2)
    transformers.BloomForCausalLM(config).save_pretrained(tmp_path / "bloom")
    demo_tokenizer.save_pretrained(tmp_path / "bloom")
    code, out, _ = run("check", tmp_path / "bloom", "--json")
    assert code == 1
    assert not json.loads(out)["accelerated"]
    assert "BloomForCausalLM cannot verify" in json.loads(out)["reason"]


def test_hybrid_is_checked_and_generates_and_chats(run, tmp_path, demo_tokenizer, monkeypatch):
    config_class, shape = HYBRIDS["lfm2"]
    special = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)
    model = build(config_class, {**shape, **special, "vocab_size": 4096})
    model.save_pretrained(tmp_path)
    demo_tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
    demo_tokenizer.save_pretrained(tmp_path)
    demo_tokenizer.chat_template = None
    code, out, _ = run("check", tmp_path, "--json")
    assert (code, json.loads(out)["verification"]) == (0, "model")
    ids = demo_tokenizer("def add(a, b):", return_tensors="pt")
    text = model.generate(**ids, max_new_tokens=12, do_sample=False)[0].tolist()
    options = ["generate", "--model", tmp_path, "--max-new-tokens", 12, "def add(a, b):", "--json"]
    result = json.loads(run(*options)[1])
    assert result["token_ids"] == text[ids["input_ids"].shape[1] :]
    assert result["stats"]["verification"] == "model"
    monkeypatch.setattr("sys.stdin", io.StringIO("def add(a, b):\nagain\n"))
    code, out, err = run("chat", "--model", tmp_path, "--max-new-tokens", 5)
    assert code == 0, err
    assert out.strip()


def test_list_shows_files_with_sizes_and_clean_deletes_the_cache(
    run, tmp_path, datastore, monkeypatch
):
    monkeypatch.setenv("SPECDS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/tables-a-25.npz").write_bytes(b"12345")
    shutil.copytree(datastore, tmp_path / "cache/datastores/machine-1-a.specds")
    header = b"SPCDSPKD" + bytes(88) + b"/models/a.gguf" + bytes(4000)
    (tmp_path / "cache/weights-1-16.packed").write_bytes(header)
    (tmp_path / "cache/weights-2-16.packed").write_bytes(b"damaged")
    shutil.copytree(datastore, tmp_path / "here/below/d.specds")
    Memory(10).save(tmp_path / "here/one.memory")
    (tmp_path / "here/.d.specds.build").mkdir()
    (tmp_path / "here/.d.specds.build/specds.lock").touch()
    (tmp_path / "here/web").mkdir()
    (tmp_path / "here/web/manifest.json").write_text("{}")
    code, out, _ = run("list", tmp_path / "here", "--json")
    found = {(row["kind"], row["path"].rpartition("/")[2]) for row in json.loads(out)}
    assert code == 0
    assert found == {
        ("datastore", "d.specds"),
        ("memory", "one.memory"),
        ("unfinished build", ".d.specds.build"),
        ("cache", "tables-a-25.npz"),
        ("cache", "machine-1-a.specds"),
        ("cache", "weights-1-16.packed"),
        ("cache", "weights-2-16.packed"),
    }
    sources = {row["source"] for row in json.loads(out)}
    assert sources == {None, "/models/a.gguf"}
    code, _, err = run("list", "--remove", "weights-3-16.packed")
    assert (code, "no such cached file" in err) == (1, True)
    _, out, err = run("list", tmp_path / "here", "--remove", "weights-2-16.packed")
    assert "weights-1-16.packed  of /models/a.gguf" in out
    assert "1 cached file deleted" in err
    assert not (tmp_path / "cache/weights-2-16.packed").exists()
    _, out, err = run("list", tmp_path / "here", "--clean")
    assert "5 B" in out
    assert "3 cached files deleted" in err
    assert [*(tmp_path / "cache").rglob("*")] == [tmp_path / "cache/datastores"]


def test_version_with_verbose_names_packages_and_cores(run):
    _, out, _ = run("--version", "--verbose")
    assert transformers.__version__ in out
    assert "cores" in out


def test_command_without_arguments_shows_four_lines(run):
    code, out, _ = run()
    assert code == 0
    assert len(out.splitlines()) == 4
    assert "specds demo" in out


MISSING = """
import sys
from specds.models import load
load.find_spec = lambda name: None if name == "gguf" else True
try:
    load.load_model(load.ModelRef("m", "gguf", sys.argv[1]))
except ImportError as error:
    print(error, "torch" in sys.modules)
"""


def test_missing_gguf_is_reported_before_torch_is_imported(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", {"general.architecture": "mamba"}, {})
    command = [sys.executable, "-c", MISSING, path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "native cannot compute it" in done.stdout
    assert done.stdout.strip().endswith(
        "gguf is not installed: in a checkout of specds, run pip install '.[convert]' False"
    )


def test_drafting_models_are_resolved_once(run, monkeypatch):
    names, resolve = [], ModelRef.resolve.__func__

    def counted(cls, name, what="model"):
        names.append(name)
        return resolve(cls, name, what)

    monkeypatch.setattr(ModelRef, "resolve", classmethod(counted))
    run("generate", "--model", "demo-small", "--drafter", "hierarchy:demo-tiny", "def a",
        "--max-new-tokens", 2)  # fmt: skip
    assert [name for name in names if isinstance(name, str)] == ["demo-small", "demo-tiny"]


@pytest.mark.parametrize("field", ["tokens", "model"])
def test_gguf_with_nested_lists_is_refused(tmp_path, field):
    def text(value):
        return struct.pack("<Q", len(value)) + value

    nested = struct.pack("<IIQIQ", 9, 9, 1, 8, 1) + text(b"a")
    path = tmp_path / "m.gguf"
    path.write_bytes(
        b"GGUF"
        + struct.pack("<IQQ", 3, 0, 1)
        + text(b"tokenizer.ggml.%b" % field.encode())
        + nested
    )
    with pytest.raises(ValueError, match="is an array of arrays"):
        GgufVocabulary.read(path)


def test_gguf_with_more_metadata_than_memory_is_refused(tmp_path):
    path = tmp_path / "m.gguf"
    with path.open("wb") as file:  # sparse: it takes no disk
        file.write(b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2 << 30))
        file.truncate((2 << 30) + 100)
    with pytest.raises(ValueError, match="its metadata takes more memory than"):
        GgufVocabulary.read(path)
