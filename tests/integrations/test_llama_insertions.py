"""Insertions into the sources of llama.cpp."""

import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "integrations" / "llama.cpp"
INSERTIONS = """\
@@ a.cpp
@ int f(
@after first;
    second;
@ int g(
@replace == 1
== 1 + 1
"""
SOURCE = "int f() {\n    first;\n}\n\nint g() {\n    assert(count == 1);\n}\n"


def insert(folder, source):
    """Return what is printed and the text of the file afterwards."""
    shutil.copy(FOLDER / "insert.py", folder)
    (folder / "extern.insertions").write_text(INSERTIONS)
    if source:
        (folder / "a.cpp").write_text(source)
    command = [sys.executable, str(folder / "insert.py"), str(folder)]
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    return ran.stderr, (folder / "a.cpp").read_text()


def test_text_goes_to_a_line_of_its_block_once(tmp_path):
    expected = SOURCE.replace("first;\n", "first;\n    second;\n").replace("== 1", "== 1 + 1")
    assert insert(tmp_path, SOURCE) == ("", expected)
    assert insert(tmp_path, None) == ("", expected)


def test_source_without_the_block_or_with_the_line_elsewhere_is_not_written(tmp_path):
    moved = SOURCE.replace("    first;\n", "").replace("    assert", "    first;\n    assert")
    for number, (source, said) in enumerate(
        {
            moved: "a.cpp: 0 lines of 'int f(' contain 'first;'",
            SOURCE + SOURCE: "a.cpp: 2 blocks start with 'int f('",
            SOURCE.replace("first;", "first; // first;\n    first;"): "a.cpp: 2 lines",
            SOURCE.replace("int g", "int h"): "a.cpp: 0 blocks start with 'int g('",
        }.items()
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        printed, text = insert(folder, source)
        assert said in printed
        assert text == source
