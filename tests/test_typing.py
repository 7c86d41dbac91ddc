"""A user's program sees every type, and mypy finds what is wrong with it."""

import sys
from pathlib import Path

from mypy import api

import specds

PROGRAM = """\
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import specds
import specds.papers
from numpy.typing import NDArray
from specds.corpora import CorpusOptions, open_corpus
from typing import assert_type


def texts() -> Iterator[NDArray[np.int64]]:
    yield np.array([5, 6, 7])


def ask(path: Path) -> int:
    with specds.build_from_token_ids(texts(), path, vocab_size=100) as datastore:
        found = datastore.lookup([5, 6], max_match=8)
        assert_type(found.length, int)
        assert_type(datastore.continuations(found), tuple[NDArray[np.int64], NDArray[np.int64]])
        assert_type(datastore.count_next([5]), NDArray[np.int64])
        assert_type([document.token_ids for document in datastore], list[NDArray[np.int64]])
        return datastore.count([5])


def draft(path: Path) -> specds.FusedDrafter:
    config = specds.FusedConfig()
    drafter = specds.FusedDrafter(path, config, memory=specds.Memory(100))
    session = drafter.session([5, 6])
    tree = session.draft(8)
    assert_type(tree.token_ids, NDArray[np.int64])
    assert_type(tree.accept([7] * (1 + len(tree))), tuple[NDArray[np.int64], NDArray[np.int64]])
    session.finish()
    drafter.save("mine.memory")
    assert_type(specds.FusedDrafter.resume("mine.memory", path), specds.FusedDrafter)
    return drafter


def build(tokenizer: Any) -> str:
    corpus = open_corpus("answers.jsonl", CorpusOptions())
    options = specds.BuildOptions(max_tokens=1000)
    report = specds.build_datastore(corpus, tokenizer, "answers.specds", options)
    assert_type(report.num_tokens, int)
    assert_type(report.skipped, Counter[str])
    return str(report.path)


def write(model: Any, tokenizer: Any) -> str:
    output = specds.generate(model, None, "answers.specds", max_nodes=16, max_new_tokens=8)
    assert_type(output.stats.tokens_per_s, float)
    assert_type(output.stats.num_accepted_tokens, int)
    specds.warm_up(model)
    return specds.Chat(model, tokenizer, specds.papers.PromptLookupDrafter()).send("Hello")


def serve() -> dict[str, int]:
    engine = specds.EngineDrafter(memory_scope="shared", vocab_size=100)
    engine.sync([[1, 2], None], names=["a", "b"])
    _, _, probs = engine.draft_chains(4)
    assert_type(probs, NDArray[np.float32])
    return engine.stats()
"""

WRONG = """\
import specds

specds.Datastore("a").lookup([5], max_match="b")
specds.Datastore("a").no_such
specds.FusedDrafter(3)
specds.generate(None, max_nodes="much")
specds.accelerate(None, max_nodes="much")
specds.build_datastore(5, None, "a")
"""


def test_program_of_a_user_is_checked_by_mypy(tmp_path, monkeypatch):
    """A user's settings, without torch's own types."""
    monkeypatch.setenv("MYPYPATH", str(Path(specds.__file__).parents[1]))
    monkeypatch.chdir(tmp_path)
    Path("mypy.ini").write_text("[mypy]\n[mypy-torch.*,transformers.*]\nfollow_imports=skip")
    options = ["--strict", "--config-file", "mypy.ini", "--python-executable", sys.executable]
    lines = {}
    for name, program in (("right.py", PROGRAM), ("wrong.py", WRONG)):
        Path(name).write_text(program)
        out, err, _ = api.run([*options, "--cache-dir", "cache", name])
        told = [line.split(":") for line in (out + err).splitlines()]
        lines[name] = {line[1] for line in told if line[0] == name}
    assert lines == {"right.py": set(), "wrong.py": {"3", "4", "5", "6", "7", "8"}}
