"""Cost and exports of `import specds`."""

import inspect
import re
import subprocess
import sys

import pytest
from grimp import build_graph

import specds
import specds.drafters
import specds.papers
from specds import _core
from specds._core import DEFAULTS

CORE = {
    name: value
    for name, value in vars(_core).items()
    if inspect.isclass(value) or inspect.isroutine(value)
}
MEMBERS = {
    f"{owner}.{name}": getattr(CORE[owner], name)
    for owner in sorted(CORE.keys() - {"FormatError", "InternalError"})
    for name in sorted(vars(CORE[owner]) if inspect.isclass(CORE[owner]) else ())
    if name[0] != "_"
}


def test_import_needs_numpy_alone():
    heavy = ["torch", "transformers", "rich", "typer", "datasets", "pyarrow", "pathspec"]
    engines = ["sglang", "vllm", "llama_cpp"]
    adapters = [f"specds.integrations.{name}" for name in (*engines, "vllm_v2")]
    names = ", ".join(["sys", "specds.generation.stats", "specds.corpora", *adapters])
    program = f"import {names}; print(*sys.modules)"
    imported = subprocess.check_output([sys.executable, "-c", program], text=True).split()
    assert not {*heavy, *engines} & {*imported}


@pytest.mark.parametrize("name", specds.__all__)
def test_every_public_name_is_there_and_documented(name):
    value = getattr(specds, name)
    assert name == "__version__" or value.__doc__


@pytest.mark.parametrize("package", [specds, specds.drafters])
def test_drafters_of_papers_are_found_in_their_old_packages_with_a_warning(package):
    for name in ("AdedDrafter", "HierarchyConfig", "RestConfig"):
        with pytest.warns(DeprecationWarning, match=f"{name} is a name of specds.papers now"):
            assert getattr(package, name) is getattr(specds.papers, name)
        assert name not in package.__all__
    with pytest.raises(AttributeError, match="no attribute 'NoDrafter'"):
        getattr(package, "NoDrafter")  # noqa: B009


@pytest.mark.parametrize("name", sorted(CORE | MEMBERS))
def test_help_documents_each_name_of_the_core_and_its_arguments(name):
    value = (CORE | MEMBERS)[name]
    text = inspect.getdoc(value)
    assert text
    if not inspect.isroutine(value) and "Args:" not in text:
        return  # a property, or a class that only the core makes
    parameters = inspect.signature(value).parameters
    assert all(parameter.default is not Ellipsis for parameter in parameters.values())
    if "Args:" in text:
        block = text.split("Args:\n")[1].split("\n\n")[0]
        told = re.findall(r"^    (\w+): ", block, re.MULTILINE)
        taken = [name for name in parameters if name not in ("self", "options")]
        assert [name for name in told if name in taken] == taken
        # The options of a record are keywords too, listed here or at another call.
        options, records = {*told} - {*taken}, [{"options"}, *map(set, DEFAULTS.values())]
        assert options in (records if "options" in parameters else [set()])


FOLDERS = {"constraints", "drafters", "generation", "models"}
"""The folders of a request of a GGUF file: the loop, and what it takes."""


def test_a_request_of_a_gguf_file_reads_four_folders_and_no_torch():
    graph = build_graph("specds", cache_dir=None, exclude_type_checking_imports=True)
    # What gets a model imports what its framework needs.
    for door in ("drafters.session", "generation.target", "models.gguf_model"):
        for found in graph.find_modules_directly_imported_by(f"specds.{door}"):
            if found.startswith("specds.transformers"):
                graph.remove_import(importer=f"specds.{door}", imported=found)
    read = graph.find_upstream_modules("specds.generation.arrays")
    assert {name.split(".")[1] for name in read} - {"_lazy"} == FOLDERS
    found = graph.find_upstream_modules("specds.transformers.target")
    assert {name.split(".")[1] for name in found} >= FOLDERS | {"transformers"}
