"""Whitespace in drafts of grammars that allow any."""

import json

import pytest
import xgrammar

from specds.constraints.of_xgrammar import XgrammarConstraint

TOKENS = [b"</s>", b"\n", *(bytes([code]) for code in range(32, 127)), b"none"]
BOOLEAN = {"type": "boolean"}
INNER = {"type": "object", "properties": {"cc": BOOLEAN, "dd": BOOLEAN}, "required": ["cc", "dd"]}
SCHEMA = {
    "type": "object",
    "properties": {"aa": BOOLEAN, "bb": INNER | {"additionalProperties": False}},
    "required": ["aa", "bb"],
    "additionalProperties": False,
}
VALUE = {"aa": True, "bb": {"cc": False, "dd": True}}


@pytest.mark.parametrize("indent", [2, 4, None])
def test_whitespace_ahead_is_that_of_earlier_places_of_the_text(indent):
    info = xgrammar.TokenizerInfo(TOKENS, stop_token_ids=[0])
    compiler = xgrammar.GrammarCompiler(info, max_threads=1)
    grammar = compiler.compile_json_schema(json.dumps(SCHEMA))
    constraint, text = XgrammarConstraint(grammar), json.dumps(VALUE, indent=indent)
    for at, char in enumerate(text):
        paths = constraint.ahead()
        drafted = [b"".join(TOKENS[token] for token in path).decode() for path in paths]
        if text[:at].endswith(("true,", "false,")):
            assert any(each.startswith(text[at : at + 10]) for each in drafted)
        assert constraint.push(TOKENS.index(char.encode()))
