"""Constraints of llguidance, which forces tokens."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path as File
from typing import Any

from specds._lazy import imported
from specds.constraints.constraint import MAX_FORCED, MatcherConstraint, Path, few_of, some_of

_GRAMMAR = "</state><grammar>\n"
"""What precedes the source of a grammar in the library's errors."""
_REGEX = re.compile(r"start: /(?:[^/\\\n]|\\.)*/")
"""A grammar of one lexeme."""
_SEPARATOR = re.compile("[ ,:]*")
_MAX_FORCED_BYTES = 1 << 13
"""Bytes of a forced text beyond which it is not drafted: the tokens of 100 kB take 75 ms."""


class LlguidanceConstraint(MatcherConstraint):
    """A copy of an `LLMatcher`.

    A forced text may have no end: that of the Lark grammar `start: /a*/ "a"` after "aa", because
    its first lexeme takes each further "a". The library limits the items of its parser, of which
    a longer lexeme makes none, so a call that looks for this text never returns, and a mask
    begins with this call. Without drafts, it is only made after texts that are written. If the
    grammar is not known to be without such texts, it is not made after drafted tokens either.

    Args:
        matcher: The grammar with its tokenizer.
        resets: Whether to begin at the start of the grammar, not where the matcher is.
        max_forced: The most forced tokens that are drafted.

    Raises:
        ValueError: The grammar is invalid.
    """

    def __init__(self, matcher: Any, *, resets: bool = True, max_forced: int = MAX_FORCED) -> None:
        matcher = matcher.deep_copy()
        if matcher.is_error():
            raise ValueError(f"grammar is invalid: {matcher.get_error()}")
        if resets:
            matcher.reset()
        failed = _failed_copy(matcher)
        self._looks_ahead = has_ends(_source_of(failed))
        # After an error, the mask allows the end alone, without a look at the grammar.
        super().__init__(matcher, vocab_size=8 * len(failed.compute_bitmask()))
        if not self._looks_ahead:
            self.mask_s = math.inf
        self._max_forced = max_forced
        # Tokens of the last free text. Where they are allowed is free text too, whose mask may
        # take a millisecond.
        self._free = list[int]()
        # Forced tokens that were not pushed yet, as far as they are known.
        self._forced = list[int]()
        # What tokens force, by the bytes that they force.
        self._forced_after: dict[tuple[int, bytes], list[int]] = {}
        # What is forced from here, and the text that must follow it, as far as they are known.
        self._ahead: tuple[list[int], str] | None = None

    def push(self, token: int) -> bool:
        forced, self._forced, self._ahead = self._forced, [], None
        if not self.ended and self._matcher.try_consume_tokens([token]) == 1:
            self._forced = forced[1:] if forced[:1] == [token] else []
            return True
        # The matcher stops before the end token, which must follow and which it does not accept.
        is_allowed = self.ended or (self._matcher.is_stopped() and token in self._few())
        self._num_beyond += is_allowed
        return is_allowed

    def pop(self, count: int) -> None:
        self._forced, self._ahead = [], None
        super().pop(count)

    def forced_token(self) -> int | None:
        if not (self._forced or self.ended):
            self._forced = self._forced_tokens()[:MAX_FORCED]
        return self._forced[0] if self._forced else None

    def _forced_tokens(self) -> list[int]:
        # The bytes take a tenth of the time of the tokens, and most often there are none.
        num_bytes = len(self._matcher.compute_ff_bytes())
        is_short = 0 < num_bytes <= _MAX_FORCED_BYTES
        return list(self._matcher.compute_ff_tokens()) if is_short else []

    def allows(self, token: int) -> bool:
        if self.ended or not self._matcher.compute_ff_bytes():
            return super().allows(token)
        # A mask of forced text allows the tokenizer's tokens alone, the matcher all that spell it.
        return bool(self.bits()[token >> 3] >> (token & 7) & 1)

    def num_allowed(self, path: list[int]) -> int:
        """Return how many tokens of a path are allowed, up to an end token; faster than `push`."""
        if self._matcher.is_stopped():
            return int(path[0] in self._few())
        return int(self._matcher.validate_tokens(path))

    def ahead(self) -> Sequence[Path]:
        if self.ended or not self._looks_ahead:
            return []
        # The search ends after 50,000 items.
        if len(self._matcher.compute_ff_bytes()) > _MAX_FORCED_BYTES:
            return []
        forced = self._forced_tokens()
        if len(forced) > self._max_forced:
            return [forced[: self._max_forced]]
        num_taken = self._matcher.try_consume_tokens(forced) if forced else 0
        paths = [[*forced, *branch] for branch in self._branches()]
        if num_taken == len(forced) and (text := self._forced_text()) is not None:
            self._ahead = forced, text
        if num_taken:
            self._matcher.rollback(num_taken)
        return [path[: self._max_forced] for path in paths or [forced] if path]

    def _branches(self) -> list[list[int]]:
        """Return the few allowed tokens, each with what it forces; not the beginnings of others."""
        rests = {token: self._after(token, self._matcher.compute_ff_bytes) for token in self._few()}
        ends = tuple(filter(None, rests.values()))
        return [
            [token, *self._tokens_of(token, rest)]
            for token, rest in rests.items()
            if not rest or not rest[1:].endswith(ends)
        ]

    def _tokens_of(self, token: int, rest: bytes | None) -> list[int]:
        """Return the tokens that a token forces, by the bytes; an end token has none."""
        if not rest or len(rest) > _MAX_FORCED_BYTES:
            return []
        # The tokens take ten times the time of the bytes, and each digit of a number forces them.
        if (token, rest) not in self._forced_after:
            found = self._after(token, self._matcher.compute_ff_tokens)
            self._forced_after[token, rest] = found
        return self._forced_after[token, rest]

    def _after(self, token: int, compute: Callable[[], Any]) -> Any:
        """Return what the matcher computes after a token, None if it does not accept the token."""
        if self._matcher.try_consume_tokens([token]) == 0:
            return None
        found = compute()
        self._matcher.rollback(1)
        return found

    def text_after(self, path: Path) -> str | None:
        if self._ahead is not None and self._ahead[0] == path:
            return self._ahead[1]
        return super().text_after(path) if self._looks_ahead else None

    def _forced_text(self) -> str | None:
        forced = bytes(self._matcher.compute_ff_bytes())
        return forced.decode(errors="ignore") if len(forced) <= _MAX_FORCED_BYTES else None

    def _bits_of_matcher(self) -> bytes:
        return bytes(self._matcher.compute_bitmask())

    def _few(self) -> list[int]:
        """Return the allowed tokens, none if there are many."""
        if self._free and all(self._matcher.validate_tokens([token]) for token in self._free):
            return []
        bits = self.bits()
        few = few_of(bits)
        self._free = self._free if few is not None else some_of(bits)
        return few or []


def _failed_copy(matcher: Any) -> Any:
    """Return a copy in the state of an error, whose text has the source of the grammar."""
    failed = matcher.deep_copy()
    failed.reset()
    failed.rollback(1)
    return failed


def _source_of(failed: Any) -> str:
    """Return the source of a grammar, empty if the library hides it."""
    return str(failed.get_error().partition(_GRAMMAR)[2].rpartition("\n</grammar>")[0])


def has_ends(source: str) -> bool:
    """Return whether each text that a grammar forces is known to end.

    So does that of a single lexeme. In JSON, no lexeme may continue as the one after it begins,
    unless a schema has its own pattern of whitespace or separators.

    Args:
        source: That of an `LLMatcher`, in Lark or JSON.
    """
    try:
        grammars = json.loads(source)["grammars"]
        return bool(grammars) and all(map(_has_ends, grammars))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False  # Lark, or unknown


def _has_ends(grammar: Any) -> bool:
    lark, schema = grammar.get("lark_grammar"), grammar.get("json_schema")
    if lark is not None or schema is None:
        return schema is None and lark is not None and bool(_REGEX.fullmatch(lark))
    given = schema.get("x-guidance", {}) if isinstance(schema, dict) else {}
    separators = (given.get(f"{name}_separator") or "" for name in ("item", "key"))
    return not given.get("whitespace_pattern") and all(map(_SEPARATOR.fullmatch, separators))


def grammar_source(json_schema: str | None, regex: str | None) -> str | None:
    """Return the grammar of a JSON schema or of a regular expression, None for none.

    Args:
        json_schema: A JSON object, or the file of one. Colons and commas precede one space.
        regex: A regular expression that the whole text matches.

    Raises:
        ValueError: Both are there, or one is invalid.
        ImportError: llguidance is not installed.
    """
    if json_schema is None and regex is None:
        return None
    if json_schema is not None and regex is not None:
        raise ValueError("--json-schema and --regex are mutually exclusive: use one of them")
    matcher = imported("llguidance").LLMatcher
    if json_schema is None:
        source, name = matcher.grammar_from_regex(regex), "--regex"
    else:
        is_text, name = json_schema.lstrip().startswith("{"), "--json-schema"
        text = json_schema if is_text else File(json_schema).read_text(encoding="utf-8")
        try:
            schema = json.loads(text)
        except ValueError as error:
            raise ValueError(f"--json-schema is not JSON: {error}") from None
        if not isinstance(schema, dict):
            raise ValueError("--json-schema must be a JSON object")
        return schema_source(schema, name)
    return _valid(source, name)


def schema_source(schema: Mapping[str, Any], name: str = "the schema") -> str:
    """Return the grammar of a JSON schema, for `matcher_of`.

    Raises:
        ValueError: It is invalid; the message begins with `name`.
        ImportError: llguidance is not installed.
    """
    given = schema.get("x-guidance")
    form = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ",
            "whitespace_pattern": None}  # fmt: skip
    whole = {**schema, "x-guidance": {**(given if isinstance(given, dict) else {}), **form}}
    try:
        # In Python, whose threads take turns; in C, 1 MB of small objects holds them for 50 ms, and
        # the library writes the same text in five times that.
        parts = json.JSONEncoder(allow_nan=False).iterencode({"grammars": [{"json_schema": whole}]})
        source = "".join(parts)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{name} is not JSON: {error}") from None
    return _valid(source, name)


def _valid(source: Any, name: str) -> str:
    if fault := imported("llguidance").LLMatcher.validate_grammar(source):
        raise ValueError(f"{name} is invalid: {fault.strip().splitlines()[0]}")
    return str(source)


def matcher_of(source: str, tokenizer: Any, vocab_size: int, eos_ids: Sequence[int]) -> Any:
    """Return the matcher of a grammar for a model.

    Args:
        source: The result of `grammar_source`.
        tokenizer: A tokenizer that the library `tokenizers` computes.
        vocab_size: That of the model.
        eos_ids: The tokens that end a text.

    Raises:
        ValueError: The tokenizer is of another kind.
    """
    return imported("llguidance").LLMatcher(known_tokens(tokenizer, vocab_size, eos_ids), source)


def known_tokens(tokenizer: Any, vocab_size: int, eos_ids: Sequence[int]) -> Any:
    """Return the `LLTokenizer` of a model, which takes long to make; as for `matcher_of`."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ValueError("a grammar needs a tokenizer with a `tokenizer.json`")
    library = imported("llguidance")
    return library.LLTokenizer(backend.to_str(), n_vocab=vocab_size, eos_token=[*eos_ids])
