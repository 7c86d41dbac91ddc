"""Random grammars over the vocabulary of tiny models, in the languages of two libraries."""

from functools import cache

from grammars import EOS, VOCABULARY

WORDS = ["a", "b", "ab", "low", "lowest", "true", " ", "q", "qqq", "{", '", ', "x1", "é"]
ENDLESS = [
    'root ::= "ab" root',
    'root ::= "a" root | "a"',
    'root ::= "a"* "a"',
    'root ::= ("a" | "aa")+',
    'root ::= "" | "low" root',
    'root ::= b "x" b\nb ::= "" | "q" b',
    'root ::= "a" b\nb ::= "b" root | "b"',
    "root ::= [a-z]+ | [a-z]* [0-9]",
    "root ::= [^x]*",
]
"""Forced strings without an end, and ends that more of the text leaves open."""


@cache
def _compiler():
    import xgrammar

    info = xgrammar.TokenizerInfo(VOCABULARY, stop_token_ids=[EOS])
    return xgrammar.GrammarCompiler(info, max_threads=1)


@cache
def llguidance_tokenizer():
    import llguidance

    class TinyTokenizer:
        eos_token_id, bos_token_id, tokens, special_token_ids = EOS, None, VOCABULARY, [EOS]

        def __call__(self, text):
            return [VOCABULARY.index(bytes([byte])) for byte in text]

    return llguidance.LLTokenizer(llguidance._tokenizer.TokenizerWrapper(TinyTokenizer()))


def _quoted(rng):
    word = rng.choice(WORDS).replace('"', '\\"')
    return f'"{word}"'


def _term(rng, depth, names):
    way = rng.randrange(7)
    if depth == 0 or way == 0:
        return _quoted(rng)
    if way == 1:
        return rng.choice(["[a-d]", "[0-9]", "[^a]", "[a-z0-9 ]"])
    if way == 2:
        return rng.choice(names)
    if way == 3:
        return f"({_body(rng, depth - 1, names)}){rng.choice(['*', '+', '?', '{1,3}'])}"
    return _body(rng, depth - 1, names) if way == 4 else _quoted(rng)


def _body(rng, depth, names):
    parts = [
        " ".join(_term(rng, depth, names) for _ in range(rng.randint(1, 3)))
        for _ in range(rng.randint(1, 3))
    ]
    return "(" + " | ".join(parts) + ")"


def ebnf(rng):
    """Rules that may refer to each other, each with an end."""
    if rng.random() < 0.25:
        return rng.choice(ENDLESS)
    names = ["root", "one", "two"]
    return "\n".join(f"{name} ::= {_quoted(rng)} | {_body(rng, 2, names)}" for name in names)


def lark(rng):
    if rng.random() < 0.25:
        return rng.choice(
            [
                'start: "ab" start',
                'start: "a" start | "a"',
                'start: /a*/ "a"',
                'start: /[a-z]+/ "q"?',
            ]
        )
    names = ["start", "one", "two"]
    found = []
    for name in names:
        body = _body(rng, 2, names).replace("[a-d]", "/[a-d]/").replace("[^a]", "/[^a]/")
        body = body.replace("[0-9]", "/[0-9]/").replace("[a-z0-9 ]", "/[a-z0-9 ]/")
        found.append(f"{name}: {_quoted(rng)} | {body.replace('{1,3}', '+')}")
    return "\n".join(found)


def regex(rng, depth=2):
    one = rng.choice(["a", "ab", "low", "[a-c]", "[^q]", "true", " ", r"\d", "q{2,5}"])
    if depth == 0:
        return one
    way = rng.randrange(4)
    inner = regex(rng, depth - 1)
    return [one + inner, f"({inner}|{one})", f"({inner}){rng.choice('*+?')}", one][way]


def schema(rng, depth=2):
    """A schema of JSON, which may refer to itself."""
    way = rng.randrange(7 if depth else 4)
    if way < 4:
        return [
            {"enum": rng.sample(["low", "lowest", "high", 1, True, None], 3)},
            {"type": rng.choice(["boolean", "integer", "null", "number"])},
            {"type": "string", "maxLength": rng.randint(0, 9)},
            {"const": rng.choice(["low" * 40, "", "x", [1, 2]])},
        ][way]
    if way == 4:
        return {"type": "array", "items": schema(rng, depth - 1), "maxItems": rng.randint(0, 4)}
    names = rng.sample(["level", "ok", "side", "a"], rng.randint(1, 3))
    found = {"type": "object", "properties": {name: schema(rng, depth - 1) for name in names},
             "required": names[: rng.randint(0, 3)], "additionalProperties": False}  # fmt: skip
    if depth == 2 and rng.random() < 0.3:
        found["properties"]["next"] = {"$ref": "#"}
        found["required"] = [*names, *(["next"] if rng.random() < 0.5 else [])]
    return found


def drawn_grammar(rng):
    """Return the kind and the text of a valid grammar, which `compiled` takes."""
    while True:
        kinds = ["ebnf", "schema of xgrammar", "regex of xgrammar", "lark", "schema", "regex"]
        kind = rng.choice(kinds)
        text = ({"ebnf": ebnf, "lark": lark}.get(kind) or (schema if "schema" in kind else regex))(
            rng
        )
        try:
            compiled(kind, text)
        except (RuntimeError, ValueError):
            continue
        return kind, text


def compiled(kind, text):
    """Return a grammar as `generate` takes it.

    Raises:
        Exception: As its library does, if it rejects the grammar.
    """
    import json

    if kind == "ebnf":
        return _compiler().compile_grammar(text)
    if kind == "schema of xgrammar":
        return _compiler().compile_json_schema(json.dumps(text), any_whitespace=bool(len(text) % 2))
    if kind == "regex of xgrammar":
        return _compiler().compile_regex(text)
    from llguidance import LLMatcher

    made = {"lark": LLMatcher.grammar_from_lark, "regex": LLMatcher.grammar_from_regex}
    source = made.get(kind, LLMatcher.grammar_from_json_schema)(text)
    if fault := LLMatcher.validate_grammar(source):
        raise ValueError(fault)
    return LLMatcher(llguidance_tokenizer(), source)
