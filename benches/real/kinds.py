"""Requests of nine kinds, and of two more that follow a log of similar requests.

`SPECDS_PROMPTS` names a file with other requests, in the form of `prompts.json`.
"""

import argparse
import json
import os
from functools import cache
from pathlib import Path

_AGAIN = 4  # index of the code request that is repeated
_EACH = 5  # every fifth of the similar requests is measured, the others are the log


@cache
def _written():
    own = Path(__file__).with_name("prompts.json")
    return json.loads(Path(os.environ.get("SPECDS_PROMPTS", own)).read_text())


def kinds() -> list[str]:
    return [*(kind for kind in _written() if not _has_log(kind)), "again"]


def every_kind() -> list[str]:
    """Return the nine kinds, and those with a log."""
    return [*kinds(), *filter(_has_log, _written())]


def messages(kind: str) -> list[list[dict[str, str]]]:
    """Return the conversations of a kind; each ends with the user's turn."""
    if kind == "again":
        return [messages("code")[_AGAIN]] * 8
    if _has_log(kind):
        return _similar(kind)[::_EACH]
    system = _written()[kind].get("system")
    first = [] if system is None else [{"role": "system", "content": system}]
    roles = ("user", "assistant")
    return [
        [*first, *({"role": roles[n % 2], "content": text} for n, text in enumerate(texts))]
        for texts in _written()[kind]["prompts"]
    ]


def log(kind: str) -> list[list[dict[str, str]]]:
    """Return forty similar requests that were answered before, for a kind with a log."""
    if not _has_log(kind):
        return []
    return [asked for number, asked in enumerate(_similar(kind)) if number % _EACH]


def _has_log(kind):
    return "of" in _written().get(kind, {})


def _similar(kind):
    written = _written()[kind]
    asks = (ask.format(thing) for thing in written["of"] for ask in written["asks"])
    return [[{"role": "user", "content": text}] for text in asks]


def parser(description, ways, kinds, limit, more=()):
    """Return the options of benchmarks that answer requests of some kinds in several ways.

    `more` are kinds that are measured only if they are asked for.
    """
    parser = argparse.ArgumentParser(description=description)
    several = {"nargs": "+", "metavar": "NAME"}
    parser.add_argument("--kinds", default=kinds, choices=[*every_kind(), *more], **several)
    parser.add_argument("--ways", default=[*ways], choices=[*ways], **several)
    parser.add_argument("--limit", default=limit, type=int, help="requests of each kind")
    parser.add_argument("--new-tokens", default=64, type=int, metavar="N")
    more = "more of specds' configuration, as JSON"
    parser.add_argument("--options", default={}, type=json.loads, help=more)
    return parser


def encode(tokenizer, conversation) -> list[int]:
    """Apply the chat template, or join the messages where a model has none."""
    if tokenizer.chat_template is None:
        text = "\n\n".join(message["content"] for message in conversation) + "\n\n"
        return tokenizer(text)["input_ids"]
    options = {"add_generation_prompt": True, "return_dict": True}
    return tokenizer.apply_chat_template(conversation, **options)["input_ids"]
