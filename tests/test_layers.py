"""Layers of all crates: a folder imports only those before it in a list, files without circles."""

import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

RUST = Path(__file__).parents[1] / "rust"
CORE = [
    "portable_math",
    "draft",
    "verify",
    "weights",
    "memory",
    "budget",
    "papers",
    "fused",
    "engine",
]
LAYERS = {
    "index": ["base", "storage", "suffixes", "lookup", "indexing"],
    "core": CORE,
    "forward": ["error", "parallel", "simd", "gguf", "bandwidth", "kernel", "model"],
    "c": [],  # the bindings have files alone
    "py": [],
}


def read(root):
    """Return each file's text by its module path, without tests, examples, build.rs and roots."""
    paths = [path.relative_to(root) for path in root.rglob("*.rs")]
    apart = {"tests", "examples", "build.rs"}
    paths = [path for path in paths if path.stem not in ("lib", "mod")]
    paths = [path for path in paths if path.parts[0] not in apart]
    return {"::".join(path.with_suffix("").parts): (root / path).read_text() for path in paths}


def imports(module, text, sources):
    """Return the files that a file names outside of comments and of its unit tests.

    A path of `crate::` that leads to no file stands for itself. In paths of `super::` and `self::`,
    which start at the folder and at the file, only names of files count: others are items.
    """
    lines = text.partition("#[cfg(test)]")[0].splitlines()
    code = "\n".join(line for line in lines if not line.strip().startswith("//"))
    starts = {"crate": "", "super": module.rpartition("::")[0], "self": module}
    found = set()
    for start, names in re.findall(r"\b(crate|super|self)::(\{[^};]*|[\w:]*)", code):
        for name in names.lstrip("{").split(","):
            path = f"{starts[start]}::{name.strip()}::".removeprefix("::")
            file = next((of for of in sources if path.startswith(f"{of}::")), None)
            found |= {file} if file else {path.removesuffix("::")} if start == "crate" else set()
    return found - {module}


def faults(folders, sources):
    """Return a description of each wrong import, and of a circle."""
    layer = {
        module: [*folders, module.split("::")[0]].index(module.split("::")[0]) for module in sources
    }
    edges = {module: imports(module, text, sources) for module, text in sources.items()}
    found = [
        f"{module} may not import {to}"
        for module, names in edges.items()
        for to in sorted(names)
        if to not in sources or layer[to] > layer[module]
    ]
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        found.append(" -> ".join(error.args[1]))
    return found


@pytest.mark.parametrize(("crate", "folders"), LAYERS.items())
def test_folders_import_only_lower_layers_and_files_without_circles(crate, folders):
    sources = read(RUST / crate)
    assert len(sources) > 3
    assert not folders or {module.split("::")[0] for module in sources} <= {*folders}
    assert faults(folders, sources) == []


def test_imports_of_higher_layers_circles_and_whole_folders_are_found():
    sources = {
        "draft::a": "/// [`crate::x`]\nuse crate::memory::b::B;",
        "memory::b": "use super::{c::C};\ncrate::draft::A;",
        "memory::c": "fn f() { super::b::g(); } use super::{$vector};",
        "fused::d": "use crate::memory::c;\n#[cfg(test)]\ncrate::x",
    }
    *wrong, circle = faults(CORE, sources)
    expected = ["draft::a may not import memory::b", "memory::b may not import draft::A"]
    assert wrong == expected
    assert {*circle.split(" -> ")} == {"memory::b", "memory::c"}
