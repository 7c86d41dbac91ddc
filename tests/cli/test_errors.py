"""What cannot be run is told in one line, its exit code says whose fault it is, nothing changes."""

import json
import shlex
import shutil

import pytest

from datastores import build, files
from specds.loading import demo_models, load_tokenizer
from specds.tokenization import fingerprint

NEW = "build --tokenizer demo --out o --corpus"
GENERATE = "generate --model demo-tiny"
MEASURE = "bench generate --device cpu --drafter prompt-lookup --transcripts"
REPLAY = "bench replay --transcripts"

# Wrong calls: exit code 2.
USAGE = [
    ("build --corpus x", "Missing option '--tokenizer'"),
    ("nonsense", "No such command 'nonsense'"),
    ("lookup --top 0 a b", "--top"),
    (f"{NEW} stdlib --field a --messages-field b", "text_field and messages_field exclude"),
    (f"{NEW} stdlib --engine x", "'x' is not one of 'local', 'ray'"),
    (f"{NEW} stdlib --max-tokens=0", "max_tokens must be at least 1, got 0"),
    (f"{NEW} stdlib --max-tokens many", "`many` is no size: try 500M, 8GB or 8GiB"),
    (f"{NEW} a --max-tokens {'9' * 23}", "2^63"),
    (f"{NEW} a --max-documents -1", "at least 0"),
    (f"lookup a b --top {10**21}", "1000000"),
    (f"{GENERATE} a --verification x", "'x' is not one of 'auto', 'packed', 'model'"),
    (f"{GENERATE} a --max-nodes {10**8}", "4,096"),
    (f"{GENERATE} a --max-nodes some", "is no number of nodes"),
    (f"{GENERATE} a --max-nodes -1", "is no number of nodes"),
    (f"{GENERATE} a --max-nodes 1.5", "is no number of nodes"),
    (f"{GENERATE} a --top-p 2", "from 0 to 1"),
    (f"{GENERATE} a --seed -1", "0"),
    (GENERATE, "Missing argument 'PROMPT'"),
    (
        f"{GENERATE} a --drafter hierarchy-x:a",
        "no drafter `hierarchy-x:a`: choose of",
    ),
    (f"{GENERATE} a --drafter hierarchy:a,window=3", "`hierarchy` has no option `window`: try"),
    (f"{GENERATE} a --drafter hierarchy:", "`hierarchy:` names no models: try `hierarchy:SMALL"),
    (f"{GENERATE} a --drafter fusd", "no drafter `fusd`: choose of fused, rest, aded"),
    (f"{REPLAY} one.jsonl --datastore d --max-nodes 8,x", "`x` is no size"),
    (f"{REPLAY} one.jsonl --datastore d --max-nodes 0", "max_nodes `0` is no number of nodes"),
    (f"{REPLAY} one.jsonl --datastore d --shape best", "'best' is not one of"),
    (
        "bench generate --model demo --limit 3 --batch 1,4",
        "3 prompts make no batch of 4: give a la",
    ),
    (f"{MEASURE} one.jsonl", "Missing option '--model'"),
    (f"{MEASURE} one.jsonl --model demo-tiny --runs 0", "runs must be at least 1, got 0"),
    (f"{MEASURE} one.jsonl --model demo-tiny --batch 0", "batch must be at least 1, got 0"),
    (f"{MEASURE} one.jsonl --model demo-tiny --baseline best", "no baseline `best`: choose of gen"),
    (f"{MEASURE} one.jsonl --model demo-tiny --modes best", "no mode `best`: choose of greedy"),
    (f"{MEASURE} one.jsonl --model demo-tiny --modes ,", "no mode ``: choose of greedy, sampled"),
]
# What does not fit, or is not there: exit code 1.
FAILURES = [
    (f"{NEW} nowhere", "no corpus `nowhere`"),
    (f"{NEW} [bold]", "no file matches `[bold]`"),
    ("build --out o --corpus stdlib --tokenizer /no/such", "no tokenizer"),
    (f"{NEW} stdlib --lang c", "language"),
    (f"{NEW} rows.jsonl", "rows.jsonl:2"),
    (
        f"{NEW} empty.txt",
        "the corpus is empty: 0 documents read, none with text; 1 left out: empty",
    ),
    (f"{NEW} one.jsonl --max-tokens 1", "the first document has more tokens than the limit"),
    ("build --tokenizer demo --corpus one.jsonl --out d", "--overwrite"),
    ("build --tokenizer x --corpus x --out no/d", "no such folder"),
    ("build --tokenizer x --corpus x --out there", "exists: choose another"),
    ("build --tokenizer x --corpus x --out there --overwrite", "nothing else is replaced"),
    ("add none --corpus one.jsonl", "none"),
    ("merge a --out b", "a"),
    ("merge d d --out d", "exists already"),
    ("info missing.specds", "missing.specds"),
    ("info .", "is not a datastore"),
    ("lookup d a --tokenizer other", "was built with the tokenizer `demo`"),
    ("push none.specds org/name", "none.specds: no such file"),
    ("pull name", "`name` is no datastore of the hub"),
    ("refresh new.specds --from-memory requests.bin", "name its tokenizer"),
    (f"{GENERATE} a --drafter rest", "drafter `rest` needs a datastore: give one by --datastore"),
    (f"{GENERATE} a --device foo", "no device `foo`: try auto, cpu or cuda"),
    ("generate --model ./no a", "no model `./no`: there is no such folder"),
    (f"{GENERATE} a --drafter hierarchy:/no", "no model `/no`: there is no such folder"),
    ("chat --model demo-tiny", "has no chat template"),
    ("generate --model demo-tiny ''", "the prompt is empty"),
    ("generate --model no a --tenant ann", "a tenant is whose requests a memory keeps: give it by"),
    ("generate --model no a --drafter prompt-lookup --memory m", "keeps no memory: leave out"),
    ("generate --model no a --drafter prompt-lookup --model-tables", "takes no tables"),
    ("generate --model no a --memory /nowhere/m", "/nowhere: no such folder"),
    ("generate --model no a --memory there", "is no memory of specds: name another file by --mem"),
    (
        "generate --model no a --drafter hierarchy:a --memory m",
        "`hierarchy:a` keeps no memory",
    ),
    ("export-generate foreign", "remove it, or choose another folder"),
    ("export-generate model --datastore small.specds", "another vocabulary"),
    ("export-generate new --into .", "no model is there"),
    ("export-generate new --into model --datastore small.specds", "another vocabulary"),
    (f"{REPLAY} one.jsonl --drafter rest", "drafter `rest` needs a datastore"),
    (f"{REPLAY} one.jsonl --drafter prompt-lookup", "no tokenizer"),
    (
        f"{REPLAY} one.jsonl --datastore d --drafter best",
        "no drafter `best`: choose of fused, rest",
    ),
    (f"{REPLAY} none.jsonl --datastore d", "no such file"),
    (f"{REPLAY} one.jsonl one.jsonl --datastore d", "rename those that share a name"),
    ("bench generate --model demo-tiny", "no prompts"),
    (f"{MEASURE} large.jsonl --model demo-tiny", "holds 4096 at position 0"),
    (f"{MEASURE} large.jsonl --model demo-tiny --tokenizer other", "the model has 4096"),
    (f"{MEASURE} one.jsonl --model demo-tiny --batch 3", "1 prompts make no batch of 3"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, datastore, demo_tokenizer):
    """What the commands name, a datastore `d` among it."""
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
    (folder / "foreign/custom_generate").mkdir(parents=True)
    (folder / "foreign/custom_generate/generate.py").write_text("def generate(): ...")
    return folder


@pytest.mark.parametrize(
    ("command", "message", "code"),
    [(*row, 2) for row in USAGE] + [(*row, 1) for row in FAILURES],
    ids=lambda value: str(value)[:70],
)
def test_an_error_is_one_line_and_changes_nothing(run, monkeypatch, folder, command, message, code):
    monkeypatch.chdir(folder)
    before = files(folder)
    got, out, err = run(*shlex.split(command))
    assert (got, out) == (code, "")
    *progress, line = err.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert all("━" in shown for shown in progress)
    assert files(folder) == before
