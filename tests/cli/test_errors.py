"""Errors of commands: one line, an exit code, and no side effects."""

import json
import shlex
import shutil
import subprocess
import sys

import pytest

from datastores import build, files
from gguf_models import write_tokens
from specds import Memory
from specds.models.load import load_tokenizer
from specds.models.resolve import demo_models
from specds.models.tokenization import fingerprint

NEW = "build --tokenizer demo --out o --corpus"
GENERATE = "generate --model demo-tiny"
MEASURE = "bench generate --device cpu --drafter prompt-lookup --transcripts"
REPLAY = "bench acceptance --transcripts"

# Wrong calls: exit code 2.
USAGE = [
    ("build --corpus x", "Missing option '--tokenizer'"),
    ("nonsense", "No such command 'nonsense'"),
    ("gen hi", "No such command 'gen'. Did you mean 'generate'?"),
    ("lookup --top 0 a b", "--top"),
    (f"{NEW} stdlib --text-field a --messages-field b", "are mutually exclusive"),
    (f"{NEW} stdlib --engine x", "'x' is not one of 'local', 'ray'"),
    (f"{NEW} stdlib --max-tokens=0", "max_tokens must be at least 1, got 0"),
    (f"{NEW} stdlib --max-tokens many", "`many` is not a size: try 500M, 8GB or 8GiB"),
    (f"{NEW} a --max-tokens {'9' * 23}", "2^63"),
    (f"{NEW} a --max-documents -1", "at least 0"),
    (f"lookup a b --top {10**21}", "1000000"),
    (f"{GENERATE} a --verification x", "'x' is not one of 'auto', 'native', 'packed', 'model'"),
    (f"{GENERATE} a --max-nodes {10**8}", "4,096"),
    (f"{GENERATE} a --max-nodes some", "is not a valid node count"),
    (f"{GENERATE} a --max-nodes -1", "is not a valid node count"),
    (f"{GENERATE} a --max-nodes 1.5", "is not a valid node count"),
    (f"{GENERATE} a --top-p 2", "from 0 to 1"),
    (f"{GENERATE} a --seed -1", "0"),
    (GENERATE, "give either PROMPT or --prompts FILE"),
    (f"{GENERATE} a --prompts b", "give either PROMPT or --prompts FILE"),
    ("generate hi", "Missing option '--model'. Try `--model demo`, a folder, a GGUF file"),
    (f"{GENERATE} a --drafter hierarchy-x:a", "unknown drafter `hierarchy-x:a`: choose from"),
    (f"{GENERATE} a --drafter hierarchy:a,window=3", "`hierarchy` has no option `window`: try"),
    (f"{GENERATE} a --drafter hierarchy:", "`hierarchy:` names no models: try `hierarchy:SMALL"),
    (f"{GENERATE} a --drafter fusd", "unknown drafter `fusd`: choose from fused, rest, aded"),
    (f"{REPLAY} one.jsonl --datastore d --max-nodes 8,x", "`x` is not a size"),
    (f"{REPLAY} one.jsonl --datastore d --max-nodes 0", "max_nodes `0` is not a valid node count"),
    (f"{REPLAY} one.jsonl --datastore d --shape best", "'best' is not one of"),
    (
        "bench generate --model demo --limit 3 --batch 1,4",
        "not enough prompts for a batch of 4: got 3",
    ),
    (f"{MEASURE} one.jsonl", "Missing option '--model'"),
    (f"{MEASURE} one.jsonl --model demo-tiny --runs 0", "runs must be at least 1, got 0"),
    (f"{MEASURE} one.jsonl --model demo-tiny --batch 0", "batch must be at least 1, got 0"),
    (
        f"{MEASURE} one.jsonl --model demo-tiny --baseline best",
        "unknown baseline `best`: choose from",
    ),
    (f"{MEASURE} one.jsonl --model demo-tiny --modes best", "unknown mode `best`: choose from"),
    (f"{MEASURE} one.jsonl --model demo-tiny --modes ,", "unknown mode ``: choose from greedy"),
]
# What does not fit, or is not there: exit code 1. These are raised before torch is imported.
AT_ONCE = [
    (f"{GENERATE} a --regex x --json-schema y", "are mutually exclusive"),
    (f"{GENERATE} a --regex '((('", "--regex is invalid"),
    (f"{GENERATE} a --json-schema '{{'", "--json-schema is not JSON"),
    (f"{GENERATE} a --json-schema '{{\"type\": 5}}'", "--json-schema is invalid"),
    (f"{GENERATE} a --drafter rest", "drafter `rest` needs a datastore: pass one with --datastore"),
    (f"{GENERATE} a --device foo", "no device `foo`: try auto, cpu or cuda"),
    (f"{GENERATE} a --dtype float3", "no dtype `float3`: try float32, bfloat16 or float16"),
    ("generate --model ./no a", "no model `./no`: there is no such folder"),
    ("generate --model ./d a", "no model `./d`: that folder has no config.json"),
    (f"{GENERATE} a --drafter hierarchy:/no", "no model `/no`: there is no such folder"),
    ("bench generate --model ./no --transcripts one.jsonl", "no model `./no`: there is no such"),
    ("chat --model demo-tiny", "has no chat template"),
    (f"{GENERATE} ''", "the prompt is empty: give a text"),
    ("generate --model other-model --datastore d a", "built with the tokenizer `demo`"),
    ("generate --model some.gguf --datastore d a", "built with the tokenizer `demo`"),
    ("generate --model deep a", "deep/specds.json is not JSON: correct it or remove it"),
    (f"generate --model {'x' * 5000} a", "x...: file name too long"),
    ("generate --model one.jsonl a", "no model `one.jsonl`: that file does not end in .gguf"),
    ("generate --model no.gguf a", "no model `no.gguf`: there is no such file"),
    (f"{GENERATE} a --datastore {'x' * 5000}", "x...: file name too long"),
    (f"{GENERATE} a --tenant ann", "--tenant requires --memory"),
    (f"{GENERATE} a --drafter prompt-lookup --memory m", "does not support --memory: leave it out"),
    (f"{GENERATE} a --drafter prompt-lookup --model-tables", "does not support --model-tables"),
    (f"{GENERATE} a --memory /nowhere/m", "/nowhere: no such folder"),
    (f"{GENERATE} a --memory there", "is not a memory of specds: name another folder with"),
    (
        f"{GENERATE} a --drafter hierarchy:demo-tiny --memory m",
        "`hierarchy:demo-tiny` does not support",
    ),
]
FAILURES = [
    *AT_ONCE,
    (f"{NEW} nowhere", "no corpus `nowhere`"),
    ("list nowhere", "nowhere: no such folder"),
    ("lookup d ''", "the text is empty: give"),
    (f"{NEW} [bold]", "no file matches `[bold]`"),
    ("build --out o --corpus stdlib --tokenizer /no/such", "no tokenizer"),
    (f"{NEW} stdlib --language c", "language"),
    (f"{NEW} rows.jsonl", "rows.jsonl:2"),
    (f"{NEW} empty.txt", "corpus is empty: 0 documents read, none with text; 1 left out: empty"),
    (f"{NEW} one.jsonl --max-tokens 1", "the first document has more tokens than the limit"),
    ("build --tokenizer demo --corpus one.jsonl --out d", "--overwrite"),
    ("build --tokenizer x --corpus x --out no/d", "no such folder"),
    ("build --tokenizer x --corpus x --out there --overwrite", "nothing else is replaced"),
    ("build --tokenizer x --corpus x --out there", "nothing else is replaced"),
    ("add none --corpus one.jsonl", "none"),
    ("merge a --out b", "a"),
    ("merge d d --out d", "exists already"),
    ("info missing.specds", "missing.specds"),
    ("info .", "is not a datastore"),
    ("lookup d a --tokenizer other", "was built with the tokenizer `demo`"),
    ("push none.specds org/name", "none.specds: no such file"),
    ("pull name", "`name` is not a name on the hub"),
    ("add new.specds --from-memory requests.bin", "name its tokenizer"),
    ("export-generate foreign", "remove it, or choose another folder"),
    ("export-generate model --datastore small.specds", "another vocabulary"),
    ("export-generate new --into .", "no model is there"),
    ("export-generate new --into model --datastore small.specds", "another vocabulary"),
    (f"{REPLAY} one.jsonl --drafter rest", "drafter `rest` needs a datastore"),
    (f"{REPLAY} one.jsonl --drafter prompt-lookup", "no tokenizer"),
    (f"{REPLAY} one.jsonl --datastore d --drafter best", "unknown drafter `best`: choose from"),
    (f"{REPLAY} none.jsonl --datastore d", "no such file"),
    (f"{REPLAY} one.jsonl one.jsonl --datastore d", "rename those that share one"),
    ("bench generate --model demo-tiny", "no prompts"),
    (f"{MEASURE} large.jsonl --model demo-tiny", "holds 4096 at position 0"),
    (f"{MEASURE} large.jsonl --model demo-tiny --tokenizer other", "the model only 4096"),
    (
        f"{MEASURE} one.jsonl --model demo-tiny --batch 3",
        "not enough prompts for a batch of 3: got 1",
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, datastore, demo_tokenizer):
    """Create the files that the commands name, with a datastore `d`."""
    folder = tmp_path_factory.mktemp("errors")
    shutil.copytree(datastore, folder / "d")
    answer = {"prompt": "def add(", "completion": "a, b):\n    return a + b\n"}
    large = {"prompt_ids": [4096], "completion_ids": [1]}
    for name, rows in {"one": [answer], "large": [large], "rows": [{"text": "a"}, {}]}.items():
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "empty.txt").touch()
    (folder / "there").write_text("mine")
    other = load_tokenizer("demo")
    other.add_tokens(["<one more>"])
    other.save_pretrained(folder / "other")
    assert fingerprint(other) != fingerprint(demo_tokenizer)
    build(folder / "small.specds", [[1, 2, 3]])
    shutil.copytree(demo_models() / "tiny", folder / "model")
    (folder / "deep").mkdir()
    (folder / "deep/specds.json").write_text("[" * 100_000)
    Memory(4096, tokenizer="another").save(folder / "other.memory")
    write_tokens(folder / "some.gguf", ["a", "b"])
    # A model of another tokenizer, whose weights are unreadable.
    shutil.copytree(folder / "other", folder / "other-model")
    (folder / "other-model/config.json").touch()
    (folder / "foreign/custom_generate").mkdir(parents=True)
    (folder / "foreign/custom_generate/generate.py").write_text("def generate(): ...")
    return folder


@pytest.mark.parametrize(
    ("command", "message", "code"),
    [(*row, 2) for row in USAGE] + [(*row, 1) for row in FAILURES],
    ids=lambda value: str(value)[:70],
)
def test_error_is_one_line_and_changes_nothing(run, monkeypatch, folder, command, message, code):
    monkeypatch.chdir(folder)
    before = files(folder)
    got, out, err = run(*shlex.split(command))
    assert (got, out) == (code, "")
    *progress, line = err.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert all("━" in shown for shown in progress)
    assert files(folder) == before


PROGRAM = """
import json, sys
from specds.cli import main

sys.modules["torch"] = sys.modules["transformers"] = None
for sys.argv in json.loads(sys.argv[1]):
    try:
        main()
    except SystemExit:
        pass
"""


def test_errors_of_arguments_precede_import_of_torch(folder):
    calls = [["specds", *shlex.split(command)] for command, _ in AT_ONCE]
    called = [sys.executable, "-c", PROGRAM, json.dumps(calls)]
    done = subprocess.run(called, cwd=folder, capture_output=True, text=True, check=True)
    for line, (_, message) in zip(done.stderr.splitlines(), AT_ONCE, strict=True):
        assert message in line
