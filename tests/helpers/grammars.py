"""A grammar of few texts over the vocabulary of tiny models, in two libraries and in plain code."""

import json
from functools import cache, partial
from itertools import product

import numpy as np

from models import VOCAB_SIZE

EOS = 0
_MERGED = [b'{"', b'":', b' "', b'",', b"lo", b"low", b"high", b"mid", b"de", b" true", b" fa"]
_CHARS = [bytes([code]) for code in range(32, 127) if chr(code) not in "#$%&*+<=>?@^`|~"]
VOCABULARY = [b"</s>", *_CHARS, *_MERGED]
VOCABULARY += [b"q" * count for count in range(2, 2 + VOCAB_SIZE - len(VOCABULARY))]
LEVELS, SIDES = ["low", "high", "mid", "lowest"], ["left", "lower"]
SCHEMA = {
    "type": "object",
    "properties": {
        "level": {"enum": LEVELS},
        "ok": {"type": "boolean"},
        "side": {"enum": SIDES},
    },
    "required": ["level", "ok", "side"],
    "additionalProperties": False,
}
TEXTS = [
    json.dumps({"level": level, "ok": ok, "side": side}).encode()
    for level, ok, side in product(LEVELS, [True, False], SIDES)
]


class ForbiddenToken:
    """Constraint that forbids one token everywhere."""

    ended = False

    def __init__(self, token):
        self.push = lambda other: other != token

    def pop(self, count):
        pass


class Reference:
    """The constraint of the texts by plain code: every token is compared with every text."""

    def __init__(self):
        self.tokens = []

    @property
    def ended(self):
        return EOS in self.tokens

    def allows(self, token):
        if self.ended:
            return True
        text = b"".join(VOCABULARY[token] for token in self.tokens)
        if token == EOS:
            return text in TEXTS
        return any(whole.startswith(text + VOCABULARY[token]) for whole in TEXTS)

    def push(self, token):
        if self.allows(token):
            self.tokens.append(token)
            return True
        return False

    def pop(self, count):
        del self.tokens[len(self.tokens) - count :]

    def mask(self):
        return np.array([self.allows(token) for token in range(VOCAB_SIZE)])

    def ahead(self):
        return []


_CHOICES = json.dumps(SCHEMA)
FREE_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@cache
def xgrammar_grammar(schema=_CHOICES):
    import xgrammar

    info = xgrammar.TokenizerInfo(VOCABULARY, stop_token_ids=[EOS])
    compiler = xgrammar.GrammarCompiler(info, max_threads=1)
    return compiler.compile_json_schema(schema, any_whitespace=False)


@cache
def llguidance_grammar(schema=_CHOICES):
    import llguidance
    from llguidance import LLMatcher

    class TinyTokenizer:
        eos_token_id, bos_token_id, tokens, special_token_ids = EOS, None, VOCABULARY, [EOS]

        def __call__(self, text):
            return [VOCABULARY.index(bytes([byte])) for byte in text]

    tokenizer = llguidance.LLTokenizer(llguidance._tokenizer.TokenizerWrapper(TinyTokenizer()))
    separators = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
    return LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(schema, overrides=separators))


GRAMMARS = {
    "xgrammar": xgrammar_grammar,
    "llguidance": llguidance_grammar,
    "own": lambda: Reference,
}


FREE_GRAMMARS = {
    "xgrammar": partial(xgrammar_grammar, json.dumps(FREE_SCHEMA)),
    "llguidance": partial(llguidance_grammar, json.dumps(FREE_SCHEMA)),
}
"""Grammars with a free string and a number."""


def allowed_tokens(row, ids, prompt_length):
    """The allowed tokens as `prefix_allowed_tokens_fn` returns them."""
    reference = Reference()
    for token in ids[prompt_length:].tolist():
        reference.push(token)
    return np.flatnonzero(reference.mask()).tolist()
