"""Options have one name and one default, in Rust, in Python and in the types."""

import ast
import json
import re
from dataclasses import asdict, fields
from inspect import signature
from pathlib import Path

import numpy as np
import pytest

import specds
from specds import BuildOptions
from specds._core import DEFAULTS, EngineDrafter
from specds.drafters import FusedConfig
from specds.papers import AdedConfig, NGrammysConfig, PromptLookupDrafter, RestConfig

RECORDS = {
    "aded": (AdedConfig, {"across_requests"}),
    "build": (BuildOptions, {"engine", "ray_address"}),
    "fused": (FusedConfig, {"max_nodes"}),
    "n_grammys": (NGrammysConfig, set()),
    "rest": (RestConfig, {"max_nodes"}),
}
"""The dataclass of each record, and its options that the core does not have."""

CORES = {"tokenizer_name", "tokenizer_fingerprint", "corpus", "plan"}
"""Options of the core's builds that callers do not set."""

STUB = ast.parse(Path(specds.__file__).with_name("_core.pyi").read_text(encoding="utf-8"))


def keywords(*names):
    """The keyword arguments of a function or a method, by the types."""
    call = STUB
    for name in names:
        (call,) = (node for node in call.body if getattr(node, "name", None) == name)
    return {argument.arg for argument in call.args.kwonlyargs}


def known(call):
    """The options that the core says it knows."""
    with pytest.raises(ValueError, match="unknown field `none_such`, expected") as refused:
        call(none_such=1)
    return set(re.findall("`(\\w+)`", str(refused.value))) - {"none_such"}


@pytest.mark.parametrize("name", RECORDS)
def test_a_dataclass_has_the_names_and_defaults_of_the_core(name):
    record, pythons = RECORDS[name]
    core = {key: value for key, value in DEFAULTS[name].items() if key not in CORES}
    assert {field.name for field in fields(record)} == core.keys() | pythons
    if name == "build":  # a builder that is given tokens one by one takes them all
        core |= {"drop_duplicates": True, "commands": ()}
    assert asdict(record()) == {**asdict(record()), **core}


def test_a_drafter_without_a_record_has_the_names_and_defaults_of_the_core():
    given = signature(PromptLookupDrafter).parameters
    assert {name: each.default for name, each in given.items()} == DEFAULTS["prompt_lookup"]


def test_the_types_have_the_names_of_the_core():
    about_the_engine = {"vocab_size", "tokenizer", "times_steps", "token_cost"}
    names = known(EngineDrafter)
    assert names == DEFAULTS["engine"].keys()
    assert keywords("EngineDrafter", "__new__") == names | about_the_engine
    about_tokens = {"vocab_size", "separator"}
    assert keywords("DatastoreBuilder", "__new__") == DEFAULTS["build"].keys() | about_tokens
    assert keywords("compact") == DEFAULTS["compact"].keys() | {"progress"}
    assert keywords("Trigrams", "build") == DEFAULTS["trigrams"].keys() | {"progress"}


def test_the_page_of_the_engines_has_the_names_and_defaults_of_the_core():
    page = Path(__file__).parents[1] / "docs" / "engines" / "index.md"
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    documented = dict(rows)
    assert documented.keys() >= known(EngineDrafter)
    for name in DEFAULTS["engine"].keys() - {"step_cost", "min_prob"}:  # these depend on the engine
        assert documented[name].startswith(as_told(DEFAULTS["engine"][name])), name


def as_told(default):
    match default:
        case None:
            return "none"
        case bool() | str():
            return f"`{json.dumps(default)}`"
        case 1073741823:
            return "2³⁰ - 1"
    return f"{default:,}".removesuffix(".0")


ITSELF = []
ITSELF.append(ITSELF)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_match": True}, "`max_match` is invalid: invalid type"),
        ({"max_match": 1.5}, "`max_match` is invalid: invalid type"),
        ({"max_match": -1}, "`max_match` is invalid: invalid value"),
        ({"max_match": "16"}, "`max_match` is invalid: invalid type"),
        ({"max_match": float("nan")}, "`max_match` must be a finite number, not NaN"),
        ({"max_match": "\ud800"}, "`max_match` is invalid"),
        ({"max_match": ITSELF}, "`max_match` is invalid"),
        ({"match": 16}, "`match` is invalid: unknown field `match`, expected `max_match`"),
    ],
)
def test_invalid_option_is_named_in_the_error(given, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        specds._core.prompt_lookup_session(**given)


def test_none_is_the_default_of_the_core_and_numpy_numbers_are_numbers():
    context = [1, 2, 3, 4, 1, 2]

    def drafted(**options):
        session = specds._core.prompt_lookup_session(**options)
        session.observe(context)
        return session.draft(9).token_ids.tolist()

    assert drafted(num_tokens=None) == drafted() == [3, 4, 1, 2]
    assert drafted(num_tokens=np.int64(2)) == [3, 4]
