"""GGUF files: their vocabulary, and loading them as models."""

import json
import subprocess
import sys

import pytest

from gguf_models import byte_tokenizer, write_model, write_tokens
from real.models import FOLDER, folder_of, with_benches
from specds._core import GgufFile
from specds.models.gguf import GgufVocabulary
from specds.models.gguf_tokenizer import UnknownTokenizerError, build_backend
from specds.models.load import LoadingError, load_encoder, load_model, load_tokenizer
from specds.models.tokenization import fingerprint, vocab_size


def in_order(vocabulary):
    return sorted(vocabulary, key=vocabulary.get)


def test_the_file_alone_has_the_fingerprint_of_the_tokenizer(tmp_path, demo_tokenizer):
    tokens = in_order(demo_tokenizer.get_vocab())
    path = tmp_path / "demo.gguf"
    for fills in ([], ["[PAD4096]", "[PAD4097]"]):  # a model may have more rows than tokens
        write_tokens(path, [*tokens, *fills], **{"tokenizer.chat_template": "{{ messages }}"})
        read = GgufVocabulary.read(path)
        assert fingerprint(read) == fingerprint(demo_tokenizer)
        assert (vocab_size(read), read.chat_template) == (4096, "{{ messages }}")
    for others in (tokens[::-1], [*tokens, "[PAD7]"], tokens[:-1]):
        write_tokens(path, others)
        assert fingerprint(GgufVocabulary.read(path)) != fingerprint(demo_tokenizer)


@pytest.mark.parametrize(("model", "expected"), [("llama", "▁▁"), ("gpt2", "  ")])
def test_spaces_are_spelled_as_in_the_original(tmp_path, model, expected):
    path = tmp_path / "a.gguf"
    write_tokens(path, ["▁a", "  ", "a b"], model)
    assert in_order(GgufVocabulary.read(path).get_vocab()) == ["▁a", expected, "a b"]


def test_file_without_tokens_is_rejected(tmp_path):
    with pytest.raises(ValueError, match="holds no tokenizer"):
        GgufVocabulary.read(write_tokens(tmp_path / "a.gguf", []))


def test_forged_gguf_file_is_read_or_rejected(tmp_path):
    path = write_tokens(tmp_path / "a.gguf", ["a", "b"])
    whole = path.read_bytes().rstrip(b"\0")
    for place in range(4, len(whole)):  # the largest lengths, counts and kinds
        path.write_bytes(whole[:place] + b"\xff" * 8 + whole[place + 8 :])
        try:
            GgufVocabulary.read(path)
        except ValueError as error:
            assert "a.gguf" in str(error)  # noqa: PT017  (a changed text is allowed)


LOAD = """
import sys
from specds.models.load import load_model
try:
    load_model(sys.argv[1])
except ValueError as error:
    print(error, "torch" in sys.modules)
"""


@pytest.mark.parametrize("share", [0.2, 0.9, 0.999])
def test_cut_model_is_refused_in_one_sentence_before_torch_is_imported(tmp_path, share):
    path = write_model(tmp_path / "m.gguf", "llama", vocab=258, extra=byte_tokenizer())
    contents = path.read_bytes()
    path.write_bytes(contents[: int(len(contents) * share)])
    done = subprocess.run([sys.executable, "-c", LOAD, path], capture_output=True, text=True)
    assert done.stdout.count("\n") == 1, done.stderr
    assert "is not a whole GGUF file" in done.stdout
    assert done.stdout.strip().endswith("False")


def test_tokenizer_of_bytes_reads_and_writes_any_text(tmp_path):
    extra = byte_tokenizer("{{ messages }}") | {"tokenizer.ggml.add_bos_token": True}
    extra |= {"tokenizer.ggml.bos_token_id": 256}
    path = write_model(tmp_path / "m.gguf", "llama", vocab=258, extra=extra)
    tokenizer, light = load_tokenizer(str(path)), load_encoder(str(path))
    text = "wörld 123 <|im_end|> \n"
    for each in (tokenizer, light):
        ids = each.encode(text, add_special_tokens=False)
        assert ids == [*text.encode()[:11], 257, *b" \n"]
        assert each.decode(ids) == text
        assert each.encode("a", add_special_tokens=True) == [256, 97]
        assert fingerprint(each) == fingerprint(GgufVocabulary.read(path))
    assert (light.eos_token_id, tokenizer.eos_token_id) == (257, 257)
    assert tokenizer.decode(ids, skip_special_tokens=True) == "wörld 123  \n"


def test_tokenizer_of_scores_merges_the_likeliest_tokens_first(tmp_path):
    tokens = ["<unk>", "<s>", "</s>", "<0x21>", "▁", "a", "b", "ab", "▁a", "▁ab", "ba"]
    scores = [0.0] * 5 + [-9.0, -9.0, -2.0, -1.0, -3.0, -4.0]
    path = write_model(tmp_path / "m.gguf", "llama", extra={
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores, "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.token_type": [2, 3, 3, 6] + [1] * 7, "tokenizer.ggml.unknown_token_id": 0,
    })  # fmt: skip
    light = load_encoder(str(path))
    assert light.encode("ab a!ba", add_special_tokens=True) == [1, 9, 8, 3, 10]
    assert light.decode([9, 8, 3, 10]) == "ab a!ba"


def test_tokenizer_of_an_unknown_kind_is_named(tmp_path):
    extra = byte_tokenizer() | {"tokenizer.ggml.pre": "new-one"}
    path = write_model(tmp_path / "m.gguf", "llama", vocab=258, extra=extra)
    with pytest.raises(UnknownTokenizerError, match="new-one"):
        build_backend(GgufFile(path), path)


def test_file_that_is_not_a_model_is_named_in_the_error(tmp_path):
    (tmp_path / "text.gguf").write_text("hello")
    (tmp_path / "model").mkdir()
    write_tokens(tmp_path / "model/a.gguf", ["a"])
    for name, said in {
        "text.gguf": "the file is not in the GGUF format",
        "model": r"that folder has no config\.json: name .*a\.gguf",
    }.items():
        with pytest.raises(LoadingError, match=said):
            load_model(str(tmp_path / name))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_a_real_file_has_the_fingerprint_of_its_tokenizer(tmp_path, name):
    folder, path = folder_of(name), tmp_path / "a.gguf"
    parts = sorted((FOLDER / f"{name}-packages").glob("**/*.gguf*"))
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    assert fingerprint(GgufVocabulary.read(path)) == fingerprint(load_encoder(str(folder)))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_real_file_is_a_model_for_each_command(tmp_path):
    folder_of("smollm2")
    (path,) = (FOLDER / "smollm2-packages").glob("**/*.gguf")
    seen = {**with_benches(FOLDER / "readers", FOLDER / "smollm2-packages"), "OMP_NUM_THREADS": "1"}
    (tmp_path / "a.txt").write_text("The capital of France is Paris.\n" * 3)
    ask = {"prompt": "The capital of France is", "completion": " Paris."}
    (tmp_path / "asked.jsonl").write_text(json.dumps(ask))

    def specds(*words, said=""):
        command = [sys.executable, "-W", "ignore", "-m", "specds", *map(str, words)]
        shared = {"env": seen, "cwd": tmp_path, "capture_output": True, "text": True}
        return subprocess.run(command, input=said, **shared)

    built = specds("build", "--corpus", "a.txt", "--tokenizer", path, "--out", "d", "--json")
    assert built.returncode == 0, built.stderr
    few = ["--max-new-tokens", 8]
    with_datastore = ["--model", path, "--datastore", "d", *few]
    done = specds("generate", *with_datastore, "The capital of France is", "--json")
    result = json.loads(done.stdout)
    assert "Paris" in result["text"]
    assert result["sources"]["datastore"] > 0
    told = specds("chat", "--model", "smollm2", *few, said="What is 2 + 2? Say a number.\n")
    assert "4" in told.stdout
    measured = specds(
        *("bench", "generate", "--model", path, "--transcripts", "asked.jsonl", "--runs", 1, *few),
        *("--baseline", "generate", "--modes", "greedy", "--drafter", "fused", "--json"),
    )
    assert {row["num_differing"] for row in json.loads(measured.stdout)["rows"]} <= {None, 0}
