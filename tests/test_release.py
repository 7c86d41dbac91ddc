"""Versions, dependencies and file lists of releases, which must agree."""

import importlib.util
import re
import subprocess
import tarfile
import tomllib

import pytest
import yaml

from pages import ROOT

WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
VERSION = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
RECIPE = (ROOT / "packages/conda/recipe.yaml").read_text()
FORMULA = (ROOT / "packages/homebrew/specds.rb").read_text()
DOCKERFILE = (ROOT / "packages/docker/Dockerfile").read_text()
PAGE = (ROOT / "docs/releasing.md").read_text()
PLATFORMS = {
    "aarch64-apple-darwin": "macosx_11_0_arm64",
    "x86_64-apple-darwin": "macosx_10_12_x86_64",
    "x86_64-pc-windows-msvc": "win_amd64",
}


def requirements(*extras):
    """Return the packages of the wheel with some extras, as `name>=version`."""
    project = PROJECT["project"]
    wanted = [*project["dependencies"]]
    for extra in extras:
        wanted += [each for each in project["optional-dependencies"][extra] if "specds" not in each]
    return {*wanted}


def test_versions_agree():
    crates = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["dependencies"]
    ours = {name: each["version"] for name, each in crates.items() if name.startswith("specds")}
    assert {*ours.values()} == {VERSION}
    assert yaml.safe_load(RECIPE)["context"]["version"] == VERSION
    assert f"/v{VERSION}/specds-{VERSION}.tar.gz" in FORMULA
    assert f"## {VERSION} (" in (ROOT / "CHANGELOG.md").read_text()
    assert f"git tag -s v{VERSION} " in PAGE


def test_dependencies_agree():
    light = requirements("gguf", "tokenizers")
    run = yaml.safe_load(RECIPE)["requirements"]["run"]
    assert {each.replace(" ", "") for each in run if each != "python"} == light
    in_image = {*re.findall(r'"([\w-]+>=[\d.]+)"', DOCKERFILE)}
    assert in_image == light - requirements()
    build = PROJECT["build-system"]["requires"][0]
    for text in (DOCKERFILE, RECIPE.replace("maturin >", "maturin>")):
        assert build in text
    entry = yaml.safe_load(RECIPE)["build"]["python"]["entry_points"]
    assert entry == [f"specds = {PROJECT['project']['scripts']['specds']}"]


def test_page_names_the_wheels_that_the_workflow_builds():
    rows = WORKFLOW["jobs"]["wheels"]["strategy"]["matrix"]["include"]
    built = {}
    for row in rows:
        machine = row["target"].split("-")[0]
        has_platform = "platform" in row
        platform = f"{row['platform']}_{machine}" if has_platform else PLATFORMS[row["target"]]
        ending = "*.whl" if platform.startswith("manylinux") else ".whl"  # of two names
        built[row["target"]] = f"specds-*{platform}{ending}"
    named = {target: file for file, target in re.findall(r"\| `(\S+\.whl)` \| `(\S+)` \|", PAGE)}
    assert named == built
    kinds = {re.split(r"[_\d]", file[8:])[0] for file in named.values()}
    assert kinds == {"manylinux", "musllinux", "macosx", "win"}


def test_wheels_are_tried_in_the_oldest_and_the_newest_python():
    steps = WORKFLOW["jobs"]["wheels"]["steps"]
    tried = {each["with"]["python-version"] for each in steps if "setup-python" in str(each)}
    ci = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    assert tried == {*ci["jobs"]["test"]["strategy"]["matrix"]["python"]}
    assert (
        f">={min(tried, key=lambda version: int(version[2:]))}"
        == (PROJECT["project"]["requires-python"])
    )
    in_alpine = next(each["run"] for each in steps if "alpine" in each.get("run", ""))
    assert {*re.findall(r"3\.\d+", in_alpine)} == tried
    assert PROJECT["tool"]["maturin"]["features"] == ["pyo3/abi3-py311"]


def test_files_of_the_image_are_those_that_a_wheel_is_built_of():
    ignored = (ROOT / "packages/docker/Dockerfile.dockerignore").read_text().splitlines()
    kept = [line[1:] for line in ignored if line.startswith("!")]
    assert all([*ROOT.glob(pattern)] for pattern in kept)
    needed = ("rust/py/Cargo.toml", "python/specds/__init__.py", "Cargo.lock", "README.md")
    parts = [name.split("/")[0] for name in needed]
    assert all(any((ROOT / part).match(pattern) for pattern in kept) for part in parts)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """The file of sources, as the workflow makes it."""
    out = tmp_path_factory.mktemp("sdist")
    command = ["maturin", "sdist", "--out", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = out.iterdir()
    return path


def test_sources_have_what_a_wheel_is_built_of(sources):
    assert sources.name == f"specds-{VERSION}.tar.gz"
    with tarfile.open(sources) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = subprocess.run(
        ["git", "ls-files", "rust", "python", "LICENSE", "Cargo.lock"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    needed = [name for name in tracked if not re.match(r"rust/(c/|\w+/(tests|benches)/)", name)]
    assert [name for name in needed if name not in names] == []
    assert [name for name in names if name.endswith((".so", ".pyc"))] == []


def test_release_is_written_into_recipe_and_formula():
    spec = importlib.util.spec_from_file_location("set_release", ROOT / "scripts/set_release.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    recipe, formula = (module.updated(text, "2.3.4", "ab" * 32) for text in (RECIPE, FORMULA))
    assert yaml.safe_load(recipe)["context"]["version"] == "2.3.4"
    assert yaml.safe_load(recipe)["source"]["sha256"] == "ab" * 32
    assert 'releases/download/v2.3.4/specds-2.3.4.tar.gz"' in formula
    assert f'sha256 "{"ab" * 32}"' in formula
    # Nothing else changes.
    for before, after in ((RECIPE, recipe), (FORMULA, formula)):
        pairs = zip(before.splitlines(), after.splitlines(), strict=True)
        changed = [one for one, other in pairs if one != other]
        assert all("sha256" in line or VERSION in line for line in changed)
        assert len(changed) == 2
