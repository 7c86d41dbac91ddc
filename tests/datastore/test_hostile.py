"""Hostile files at paths that are read or written: links, pipes, folders of others, damage."""

import os
import sys
from pathlib import Path

import pytest

from datastores import build, files, names
from specds import Datastore, FormatError
from specds.drafters import Memory
from specds.indexing import DatastoreBuilder, compact, merge

FACTS = {"vocab_size": 4, "separator": 4}
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="has other links and no pipes")


@pytest.fixture
def path(tmp_path):
    """A datastore of three shards."""
    documents = [[i % 4, i // 150] * 15 for i in range(600)]
    return build(tmp_path / "d", documents, max_shard_tokens=6200).path


def add(path, **options):
    with DatastoreBuilder(path, **FACTS, append=True, **options) as builder:
        builder.add_documents([3, 3, 3], [3])
        return builder.finish()


def file_of(path, name):
    return min(path.glob("shard-*")) / name


def test_all_paths_of_a_datastore_have_one_lock(tmp_path, path):
    link = tmp_path / "link"
    link.symlink_to("d")
    (tmp_path / "below").mkdir()
    with DatastoreBuilder(path, **FACTS, append=True):
        for name in (link, tmp_path / "below" / ".." / "link"):
            for write in (add, compact, lambda to: merge([path], to, overwrite=True)):
                with pytest.raises(BlockingIOError, match="is being written"):
                    write(name)
    add(link)
    assert link.is_symlink()
    assert Datastore(path).num_documents == 601


def test_names_that_are_not_utf8_have_different_folders(tmp_path):
    one, other = (tmp_path / os.fsdecode(name) for name in (b"x\xff", b"x\xfe"))
    with DatastoreBuilder(one, **FACTS):
        build(other, [[1]])
    with pytest.raises(OSError, match="too long"):
        DatastoreBuilder(tmp_path / ("a" * 250), **FACTS)


def a_folder_of_the_user(at):
    (at / "photos").mkdir(parents=True)
    (at / "thesis.tex").write_text("x")
    return at


HOSTILE = {
    "a folder of the user": a_folder_of_the_user,
    "a link to one": lambda at: at.symlink_to(a_folder_of_the_user(at.with_name("home"))),
    "a link to an empty one": lambda at: (at.with_name("home").mkdir(), at.symlink_to("home")),
    "a file": Path.touch,
    "a folder that anyone can write": lambda at: (at.mkdir(), at.chmod(0o777)),
    "a lock that is a link": lambda at: (at.mkdir(), (at / "specds.lock").symlink_to("../letter")),
}


@pytest.mark.parametrize("put", HOSTILE)
def test_foreign_file_in_place_of_the_staging_folder_is_not_touched(tmp_path, put):
    (tmp_path / "letter").write_text("x")
    HOSTILE[put](tmp_path / ".d.build")
    before = files(tmp_path), names(tmp_path)
    with pytest.raises(FileExistsError, match="exists and was not created by this user"):
        DatastoreBuilder(tmp_path / "d", **FACTS)
    assert (files(tmp_path), names(tmp_path)) == before


def test_links_in_the_staging_folder_are_removed_and_not_followed(tmp_path):
    staging, home = tmp_path / ".d.build", tmp_path / "home"
    a_folder_of_the_user(home)
    before = files(home)
    staging.mkdir(mode=0o755)
    (staging / "specds.lock").touch()
    (staging / "datastore").symlink_to("../home")
    (staging / "plan.new").symlink_to("../home/thesis.tex")
    build(tmp_path / "d", [[1, 2]])
    assert files(home) == before
    assert not staging.exists()


def test_request_cache_is_private_and_follows_no_link_in_its_folder(tmp_path):
    memory, letter = Memory(10), tmp_path / "letter"
    memory.insert("ann", [1, 2, 3])
    letter.write_text("x")
    memory.save(tmp_path / "m")
    for path, mode in (
        (tmp_path / "m", 0o700),
        *((file, 0o600) for file in (tmp_path / "m").iterdir()),
    ):
        assert path.stat().st_mode & 0o777 == mode
    (tmp_path / "m/head-000000000001").symlink_to("../letter")
    memory.insert("ann", [4, 5, 6])
    with pytest.raises(FormatError, match="its head"):
        memory.save(tmp_path / "m")
    assert letter.read_text() == "x"


def test_merge_takes_only_the_files_of_a_shard(tmp_path, path):
    merged, keys = tmp_path / "merged", file_of(path, "keys.bin")
    file_of(path, "x.bin").symlink_to("/etc/passwd")
    os.mkfifo(file_of(path, "pipe"))
    # A file that cannot be linked is copied, as one of another file system or a link to a file.
    keys.rename(tmp_path / "keys")
    keys.symlink_to(tmp_path / "keys")
    # A file of another user, who could change it later, is copied too; only root can make one.
    is_given = os.geteuid() == 0
    if is_given:
        os.chown(file_of(path, "firsts.bin"), 1, -1)
    store = merge([path], merged)
    store.verify()
    assert len(files(merged)) == 1 + 3 * 6
    assert not file_of(merged, "keys.bin").is_symlink()
    assert file_of(merged, "tokens.bin").stat().st_nlink == 2
    assert file_of(merged, "firsts.bin").stat().st_nlink == (1 if is_given else 2)
    content = bytearray(keys.read_bytes())
    content[0] ^= 1
    (tmp_path / "keys").write_bytes(content)
    with pytest.raises(FormatError, match=f"{keys.name} has changed"):
        merge([path], merged, overwrite=True)
    store.verify()


@pytest.mark.parametrize("name", ["tokens.bin", "shard.json", "manifest.json"])
def test_pipe_is_rejected_without_waiting(tmp_path, path, name):
    victim = path / name if name == "manifest.json" else file_of(path, name)
    victim.unlink()
    os.mkfifo(victim)
    for read in (Datastore, lambda path: merge([path], tmp_path / "merged")):
        with pytest.raises(OSError, match=f"{victim}.*not a regular file"):
            read(path)


WRITES = {"compact": compact, "add": lambda path: add(path, drop_duplicates=True)}


@pytest.mark.parametrize("write", WRITES)
# The highest byte of an end makes a document larger than the RAM.
@pytest.mark.parametrize(
    ("name", "byte"), [("tokens.bin", 0), ("documents.bin", 0), ("documents.bin", 3)]
)
def test_damaged_shard_is_named_and_not_copied(tmp_path, path, write, name, byte):
    victim = file_of(path, name)
    content = bytearray(victim.read_bytes())
    content[byte] ^= 0x40
    victim.write_bytes(content)
    before = files(tmp_path)
    with pytest.raises(FormatError, match=str(victim)):
        WRITES[write](path)
    assert files(tmp_path) == before
