"""Names of datastores on the hub, and the datastore that a model's folder names."""

import json
from pathlib import Path

import pytest

from datastores import build
from specds import Datastore, build_from_token_ids
from specds.hub import locate, named_datastore
from specds.hub.names import HubName
from specds.hub.upload import card_of
from specds.indexing.local import tokenizer_metadata
from specds.integrations.adapter import Adapter


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("org/name", HubName("org/name")),
        ("org/na-me_1.2", HubName("org/na-me_1.2")),
        ("hf://org/name", HubName("org/name")),
        ("hf:/org/name@v1", HubName("org/name", "v1")),
        ("hf://datasets/org/name@refs/pr/1", HubName("org/name", "refs/pr/1")),
        ("org/name@v1", HubName("org/name", "v1")),
        ("name", None),
        ("./org/name", None),
        ("../name", None),
        ("org/..", None),
        ("/org/name", None),
        ("org/name/file", None),
        ("org/name\n", None),
        ("", None),
    ],
)
def test_parse_distinguishes_names_from_paths(text, name):
    assert HubName.parse(text) == name
    if text and "\n" not in text:
        assert HubName.parse(Path(text)) == (
            HubName.parse("org/name") if text == "./org/name" else name
        )


@pytest.mark.parametrize("text", ["hf://name", "hf://org/name/file", "hf://org/../x"])
def test_parse_of_scheme_without_name_raises(text):
    with pytest.raises(ValueError, match="is not a name on the hub: try hf://org/name@revision"):
        Datastore(text)


def test_local_folder_takes_precedence_over_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("org").mkdir()
    build_from_token_ids([[1, 2]], "org/name", vocab_size=3)
    assert locate("org/name") == Path("org/name")
    assert Datastore("org/name").num_documents == 1


def test_card_escapes_untrusted_manifest():
    manifest = dict.fromkeys(("vocab_size", "num_tokens", "num_documents"), 1)
    manifest |= dict.fromkeys(("tokenizer_name", "tokenizer_fingerprint", "build_id"), "0")
    manifest |= {"corpus": ["a|b`c\n---\nlicense: mit"], "commands": ["one\n# two"]}
    card = card_of(HubName("org/name"), manifest, 1, None)
    assert "| corpus | `a\\|b'c --- license: mit` |" in card
    assert "\n    one # two\n" in card
    assert card.count("---\n") == 2


def test_named_datastore_reads_specds_json(tmp_path):
    assert named_datastore(tmp_path) is None
    assert named_datastore("demo") is None
    own = tmp_path / "specds.json"
    own.write_text(json.dumps({"datastore": "hf://org/name@v1"}))
    assert named_datastore(tmp_path) == "hf://org/name@v1"
    own.write_text(json.dumps({"datastore": "d.specds"}))
    with pytest.raises(ValueError, match=r"`d\.specds` is neither a datastore of the hub nor in"):
        named_datastore(tmp_path)
    (tmp_path / "d.specds").mkdir()
    assert named_datastore(tmp_path) == str(tmp_path / "d.specds")
    for bad in ("../elsewhere", "/etc", 3):
        own.write_text(json.dumps({"datastore": bad}))
        with pytest.raises(ValueError, match=r"specds\.json: "):
            named_datastore(tmp_path)


def test_engines_draft_from_named_datastore(tmp_path, demo_tokenizer):
    demo_tokenizer.save_pretrained(tmp_path)
    facts = tokenizer_metadata(demo_tokenizer, "demo")
    build(tmp_path / "d", [[1, 2, 3, 4, 5] * 9], **facts)
    (tmp_path / "specds.json").write_text('{"datastore": "d"}')

    def drafted(options):
        drafter = Adapter(options, 4, tokenizer=str(tmp_path)).drafter
        drafter.sync([[7, 1, 2, 3]], ["a"])
        return drafter.draft_chains(2)[0].tolist()

    assert drafted({}) == [[4, 5]]
    assert drafted({"datastore": None}) == [[-1, -1]]
    (tmp_path / "specds.json").unlink()
    assert drafted({}) == [[-1, -1]]
