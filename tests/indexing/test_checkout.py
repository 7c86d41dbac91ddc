"""Datastore of a git checkout: which files it has, what is read again, kills and two processes."""

import json
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from specds import Datastore
from specds.indexing import checkout
from specds.indexing.checkout import CheckoutError, checkout_datastore, is_checkout


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Return a checkout of two tracked files, an ignored one, a new one and a link out of it."""
    monkeypatch.setenv("SPECDS_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "project"
    root.mkdir()
    (tmp_path / "secret.txt").write_text("the secret of another folder")
    files = {"a.py": "def add(a, b):\n    return a + b\n", "b.py": "import json\n"}
    files |= {
        ".gitignore": "ignored.txt\n",
        "ignored.txt": "nobody reads this\n",
        "new.md": "New\n",
    }
    for name, text in files.items():
        (root / name).write_text(text)
    (root / "binary.bin").write_bytes(bytes(range(256)))
    (root / "link.txt").symlink_to(tmp_path / "secret.txt")
    git(root, "init", "-q")
    git(root, "add", "a.py", "b.py", ".gitignore", "link.txt")
    return root


def git(root, *arguments):
    subprocess.run(["git", "-C", str(root), *arguments], check=True)


def texts_of(datastore, tokenizer):
    return {tokenizer.decode(document.token_ids) for document in datastore}


@pytest.fixture
def read(monkeypatch):
    """Return the names of the files that are read."""
    names, batches = [], checkout._batches

    def noted(root, changed):
        names.extend(changed)
        return batches(root, changed)

    monkeypatch.setattr(checkout, "_batches", noted)
    return names


def test_checkout_has_what_git_tracks_or_does_not_ignore(root, demo_tokenizer):
    found = texts_of(checkout_datastore(root, demo_tokenizer), demo_tokenizer)
    assert found == {(root / name).read_text() for name in ("a.py", "b.py", ".gitignore", "new.md")}
    assert is_checkout(root)
    assert not is_checkout(root.parent)


def test_only_changed_files_are_read_again(root, demo_tokenizer, read):
    checkout_datastore(root, demo_tokenizer)
    assert {"a.py", "b.py"} <= {*read}
    read.clear()
    assert checkout_datastore(root, demo_tokenizer).num_documents == 4
    assert read == []
    (root / "b.py").write_text("import json, sys\n")
    (root / "new.md").unlink()
    found = checkout_datastore(root, demo_tokenizer)
    assert read == ["b.py"]
    names = ("a.py", "b.py", ".gitignore")
    assert texts_of(found, demo_tokenizer) == {(root / name).read_text() for name in names}
    assert len([*found.path.parent.glob("*.specds")]) == 1


def test_refreshed_datastore_equals_a_new_one(root, demo_tokenizer, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    for _ in range(6):
        name = f"{rng.integers(4)}.txt"
        (root / name).write_text(" ".join(map(str, rng.integers(99, size=rng.integers(1, 40)))))
        found = texts_of(checkout_datastore(root, demo_tokenizer), demo_tokenizer)
        with monkeypatch.context() as other:
            other.setenv("SPECDS_CACHE", str(tmp_path / f"other-{rng.integers(1 << 40)}"))
            assert texts_of(checkout_datastore(root, demo_tokenizer), demo_tokenizer) == found


def test_kept_tokens_that_are_damaged_are_read_again(root, demo_tokenizer, read):
    found = checkout_datastore(root, demo_tokenizer)
    [kept] = found.path.parent.glob("*.npz")
    (root / "b.py").write_text("import json, sys\n")
    kept.write_bytes(kept.read_bytes()[:50])
    read.clear()
    assert checkout_datastore(root, demo_tokenizer).num_documents == 4
    assert {"a.py", "b.py"} <= {*read}


def test_killed_refresh_leaves_the_last_datastore_and_is_repeated(
    root, demo_tokenizer, monkeypatch
):
    before = checkout_datastore(root, demo_tokenizer)
    (root / "b.py").write_text("import json, sys\n")
    with monkeypatch.context() as killed:
        killed.setattr(checkout, "build_from_token_ids", lambda *_, **__: sys.exit(9))
        with pytest.raises(SystemExit):
            checkout_datastore(root, demo_tokenizer)
    assert Datastore(before.path).num_documents == 4
    assert checkout_datastore(root, demo_tokenizer).path != before.path


TOKENIZER = Path(__file__).parents[2] / "packages" / "demo" / "specds_demo" / "main"
# Builds the datastore, and waits for a line at one of its stages.
CHILD = """
import json, sys
from pathlib import Path
from specds.indexing import checkout
from specds.models.tokenization import FastTokenizer

root, stage, tokenizer = sys.argv[1:]
build = checkout.build_from_token_ids

def reached(*_):
    print("reached", flush=True)
    sys.stdin.readline()

def documents(all_of):
    yield all_of[0]
    if stage == "in the build":
        reached()
    yield from all_of[1:]

def slow_build(all_of, *arguments, **named):
    if stage == "before the build":
        reached()
    found = build(documents(all_of), *arguments, **named)
    if stage == "after the build":
        reached()
    return found

checkout.build_from_token_ids = slow_build
tokenizer = FastTokenizer.read(Path(tokenizer))
if stage == "at the start":
    reached()
progress = reached if stage == "after tokenizing" else None
found = checkout.checkout_datastore(Path(root), tokenizer, progress)
texts = sorted(tokenizer.decode(document.token_ids) for document in found)
print(json.dumps([str(found.path), texts]), flush=True)
"""


def started(root, stage, stack):
    """Start a process, and return it when it waits at a stage."""
    command, pipe = [sys.executable, "-c", CHILD, str(root), stage, str(TOKENIZER)], subprocess.PIPE
    child = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    stack.callback(lambda: (child.kill(), child.communicate()))
    assert child.stdout.readline() == "reached\n"
    return child


@pytest.mark.parametrize(
    "stage", ["after tokenizing", "before the build", "in the build", "after the build"]
)
def test_killed_process_leaves_the_last_datastore_and_no_lock(root, demo_tokenizer, stage):
    before = checkout_datastore(root, demo_tokenizer)
    (root / "b.py").write_text("import json, sys\n")
    with ExitStack() as stack:
        started(root, stage, stack).kill()
    texts = {(root / name).read_text() for name in ("a.py", "b.py", ".gitignore", "new.md")}
    if stage != "after the build":
        # The control: the kill came before the new datastore was published.
        assert [*before.path.parent.glob("*.specds")] == [before.path]
        assert "import json\n" in texts_of(Datastore(before.path), demo_tokenizer)
    found = checkout_datastore(root, demo_tokenizer)
    assert texts_of(found, demo_tokenizer) == texts
    assert [*found.path.parent.glob("*.specds")] == [found.path]


def test_two_processes_at_once_get_the_same_datastore(root, demo_tokenizer):
    with ExitStack() as stack:
        children = [started(root, "in the build", stack), started(root, "at the start", stack)]
        # The second one waits for the first one, which is in the middle of its build.
        children[1].stdin.write("\n")
        children[1].stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            children[1].wait(0.5)
        printed = [child.communicate("\n")[0] for child in children]
    (path, texts), second = map(json.loads, printed)
    assert second == [path, texts]
    names = ("a.py", "b.py", ".gitignore", "new.md")
    assert texts == sorted((root / name).read_text() for name in names)


def test_process_that_waits_continues_when_the_builder_is_killed(root, demo_tokenizer):
    with ExitStack() as stack:
        builder, waiting = (
            started(root, stage, stack) for stage in ("in the build", "at the start")
        )
        waiting.stdin.write("\n")
        waiting.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(0.5)
        builder.kill()
        path, texts = json.loads(waiting.communicate()[0])
    assert len(texts) == Datastore(path).num_documents == 4


def test_two_builders_of_the_same_files_get_the_same_datastore(root, demo_tokenizer, monkeypatch):
    monkeypatch.setattr(checkout, "_POLL_S", 0.01)
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(checkout_datastore(root, demo_tokenizer)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each.num_documents for each in found] == [4] * 4
    assert len({each.path for each in found}) == 1


def test_folders_without_files_or_git_are_refused(root, demo_tokenizer, monkeypatch, tmp_path):
    with pytest.raises(CheckoutError, match="git cannot list"):
        checkout_datastore(tmp_path / "cache", demo_tokenizer)
    empty = root / "empty"
    empty.mkdir()
    with pytest.raises(CheckoutError, match="has no text that git tracks"):
        checkout_datastore(empty, demo_tokenizer)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CheckoutError, match="git is not installed"):
        checkout_datastore(root, demo_tokenizer)


def test_command_drafts_from_the_checkout(root, run, monkeypatch):
    monkeypatch.chdir(root)
    options = ("--model", "demo-tiny", "--max-new-tokens", "8", "--temperature", "0")
    plain = run("generate", *options, "--datastore", "none", "def add(")
    drafted = run("generate", *options, "--datastore", ".", "def add(")
    assert (plain[0], drafted[0]) == (0, 0)
    assert drafted[1] == plain[1]
    assert [*(root.parent / "cache" / "checkouts").glob("checkout-*.specds")]
