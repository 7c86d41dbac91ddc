"""Bodies of requests of OpenAI's API and of llama.cpp's infill, read into what the engine takes."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from specds._core import GgufFile
from specds._lazy import imported
from specds.constraints.of_llguidance import known_tokens, schema_source
from specds.generation.processors import Processing
from specds.generation.sampling import Sampling
from specds.integrations.openai import MAX_CHARS, text_of
from specds.models.chat_template import TemplateError
from specds.models.context import require_room
from specds.models.gguf import field
from specds.models.spelled import SpelledPrompts
from specds.models.tool_calls import MAX_IDS, example_tokens
from specds.serving.infill import FillPrompts
from specds.serving.job import Asked
from specds.serving.pieces import Style

_log = logging.getLogger("specds")
_logged = set[str]()

MOST_CHOICES = 16
_MOST_STOPS, _MOST_STOP_CHARS, _MOST_TOP = 16, 1024, 20
_MOST_MESSAGES = 2048
"""Messages of a request: to copy 20,000 for the template would stop all other threads for 20 ms."""
_MOST_CHARS_A_TOKEN = 32
"""Characters for each token of the context, beyond which a text is not tokenized."""
_MOST_ITEMS = 10_000
"""Items of the parser for a token, of which llguidance computes 2,000 in some milliseconds."""
_MOST_LOGGED = 256
"""The most names of unknown fields that are logged, each once."""

# Name, whether a whole number, least, most.
_NUMBERS = {
    "temperature": (False, 0, 100),
    "top_p": (False, 0, 1),
    "min_p": (False, 0, 1),
    "top_k": (True, -1, 1 << 31),
    "presence_penalty": (False, -2, 2),
    "frequency_penalty": (False, -2, 2),
    "repetition_penalty": (False, 0.01, 100),
    "repeat_penalty": (False, 0.01, 100),
    "max_tokens": (True, 0, 1 << 31),
    "max_completion_tokens": (True, 0, 1 << 31),
    "n_predict": (True, -1, 1 << 31),
    "min_tokens": (True, 0, 1 << 31),
    "n": (True, 1, MOST_CHOICES),
    "seed": (True, -(1 << 63), (1 << 64) - 1),
    "top_logprobs": (True, 0, _MOST_TOP),
    "t_max_predict_ms": (True, -1, 1 << 31),
}
_TEXTS = ("model", "user", "safety_identifier", "suffix", "reasoning_effort", "input_prefix",
          "input_suffix")  # fmt: skip
_OTHERS = {
    *("messages", "prompt", "stop", "stream", "stream_options", "logit_bias", "logprobs", "tools"),
    *("tool_choice", "parallel_tool_calls", "response_format", "prediction", "ignore_eos", "echo"),
    *("chat_template_kwargs", "store", "metadata", "service_tier", "prompt_cache_key", "verbosity"),
    *("input_extra", "response_fields", "specds_sources", "modalities", "best_of"),
}
_KNOWN = {*_NUMBERS, *_TEXTS, *_OTHERS}
# What a client cannot set for a template.
_OF_TEMPLATES = {
    *("messages", "tools", "documents", "chat_template", "tokenize", "return_dict"),
    *("add_generation_prompt",),
}
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


class RequestError(ValueError):
    """A request that is wrong; the message says how.

    Attributes:
        param: The field at fault.
        code: OpenAI's name of the error.
        status: Of the answer.
    """

    def __init__(self, message: str, param: str | None = None, code: str | None = None,
                 status: int = 400) -> None:  # fmt: skip
        super().__init__(message)
        self.param, self.code, self.status = param, code, status


@dataclass(frozen=True)
class ApiRequest:
    """A request that was read.

    Attributes:
        prompts: What is asked for each prompt.
        num_choices: Texts for each prompt.
        is_chat: Whether answers are messages.
        is_streamed: Whether the answer is a stream.
        has_usage: Whether the stream ends with the usage.
        has_sources: Whether the stream names the sources of tokens.
        echo: The texts that the choices begin with, one for each prompt.
        fields: The fields of the answer that are asked for; empty for all.
    """

    prompts: list[Asked]
    num_choices: int = 1
    is_chat: bool = True
    is_streamed: bool = False
    has_usage: bool = False
    has_sources: bool = False
    echo: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()

    @property
    def jobs(self) -> list[Asked]:
        """Texts that are asked for; the seeds of those of a prompt follow each other."""
        return [
            asked if asked.seed is None else replace(asked, seed=asked.seed + number)
            for asked in self.prompts
            for number in range(self.num_choices)
        ]


class RequestReader:
    """Reads requests for a model. Threads can share it.

    Args:
        file: The model's file, whose fields name the tokens of fill-in-the-middle prompts.
        spells_control_tokens: As in `specds.Chat`.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        file: GgufFile | None = None,
        *,
        spells_control_tokens: bool = False,
    ) -> None:
        self._model, self._tokenizer, self._file = model, tokenizer, file
        weights = getattr(model, "weights", None)  # of the core
        self._has_marks = weights is not None and not weights.takes_trees
        self._spelled = SpelledPrompts(tokenizer) if spells_control_tokens else None
        self._template = str(tokenizer.chat_template or "")
        self.fill = FillPrompts(tokenizer, file, model.vocab_size)

    @property
    def has_template(self) -> bool:
        """Return whether the model has a chat template."""
        return bool(self._template)

    @property
    def architecture(self) -> str:
        """Return the architecture of the model's file; empty without a file."""
        return str(field(self._file, "general.architecture", "")) if self._file else ""

    @cached_property
    def _known_tokens(self) -> Any:
        return known_tokens(self._tokenizer, self._model.vocab_size, self._ends)

    @property
    def _ends(self) -> list[int]:
        eos = self._model.settings.get("eos_token_id")
        return [eos] if isinstance(eos, int) else [*(eos or ())]

    def chat(self, body: Any, tenant: str) -> ApiRequest:
        """Read the body of `/v1/chat/completions`.

        Raises:
            RequestError: It is wrong.
        """
        if not self._template:
            raise RequestError("the model has no chat template: use /v1/completions", "messages")
        given = _checked(body)
        messages = _messages(given.get("messages"))
        tools = _tools(given.get("tools")) if given.get("tool_choice") != "none" else []
        forced = _forced(given.get("tool_choice"), tools)
        ids, mark_at, tail = self._chat_prompt(messages, tools, given)
        style = Style.of(self._template, has_tools=bool(tools), is_forced=bool(forced))
        in_reasoning = any(tail.rstrip().endswith(pair[0]) for pair in style.reasoning)
        source = _grammar(_schema_of_calls(forced), "tools") if forced else self._format(given)
        predicted = self._predicted(given)
        is_predicted = predicted is not None
        if predicted is None and tools and source is None:
            calls = example_tokens(self._tokenizer, tools)
            predicted = [token for token in calls if token < self._model.vocab_size]
        top = given.get("top_logprobs", 0) if _flag(given, "logprobs") else None
        asked = self._asked(given, ids, tenant, source=source, top_logprobs=top)
        asked = replace(asked, style=style, in_reasoning=in_reasoning, mark_at=mark_at,
                        predicted=predicted or None, is_predicted=is_predicted)  # fmt: skip
        return self._call(given, [asked], is_chat=True)

    def completion(self, body: Any, tenant: str) -> ApiRequest:
        """Read the body of `/v1/completions`: texts, token ids or lists of these."""
        given = _checked(body)
        prompt = given.get("prompt", "")
        suffix = given.get("suffix")
        is_one = isinstance(prompt, str) or (
            isinstance(prompt, list) and prompt and all(type(each) is int for each in prompt)
        )
        prompts = [prompt] if is_one else prompt
        if not isinstance(prompts, list) or not 0 < len(prompts) <= MOST_CHOICES:
            raise RequestError(f"prompt must be a text, or 1 to {MOST_CHOICES} of them", "prompt")
        top = given.get("logprobs")
        if top is not None and not (type(top) is int and 0 <= top <= _MOST_TOP):
            raise RequestError(f"logprobs must be an integer from 0 to {_MOST_TOP}", "logprobs")
        source, predicted = self._format(given), self._predicted(given)
        found = []
        for each in prompts:
            ids = self._filled(each, suffix) if suffix else self._prompt_ids(each)
            asked = self._asked(given, ids, tenant, source=source, top_logprobs=top)
            ends = asked.ends | self.fill.ends if suffix else asked.ends
            asked = replace(asked, mark_at=len(ids) - 1, ends=ends)
            found.append(replace(asked, predicted=predicted, is_predicted=True))
        echo = tuple(map(self._text, prompts)) if _flag(given, "echo") else ()
        return self._call(given, found, is_chat=False, echo=echo)

    def infill(self, body: Any, tenant: str) -> ApiRequest:
        """Read the body of llama.cpp's `/infill`, as llama.vim and llama.vscode send it."""
        given = _checked(body)
        extra = given.get("input_extra") or []
        if not isinstance(extra, list) or not all(
            isinstance(part, dict) and isinstance(part.get("text"), str) for part in extra
        ):
            raise RequestError("input_extra must be a list of objects with `text`", "input_extra")
        files = [(_utf8(part.get("filename") or "filename", "input_extra"),
                  _utf8(part["text"], "input_extra")) for part in extra]  # fmt: skip
        before = given.get("input_prefix", "") + _text_field(given, "prompt")
        room = max(given.get("n_predict", 0), 0)
        ids = self._filled(before, given.get("input_suffix", ""), files, room)
        asked = self._asked(given, ids, tenant)
        asked = replace(asked, mark_at=len(ids) - 1, ends=asked.ends | self.fill.ends)
        wanted = given.get("response_fields") or []
        if not isinstance(wanted, list) or not all(isinstance(name, str) for name in wanted):
            raise RequestError("response_fields must be a list of names", "response_fields")
        return self._call(given, [asked], is_chat=False, fields=tuple(wanted))

    def tokens(self, body: Any) -> list[int]:
        """Read the body of `/tokenize`: `content`, or vLLM's `prompt` or `messages`."""
        if not isinstance(body, dict):
            raise RequestError("the body must be a JSON object")
        if "messages" in body:
            return self._chat_prompt(_messages(body["messages"]), _tools(body.get("tools")), body)[
                0
            ]
        text = body.get("content", body.get("prompt"))
        adds = body.get("add_special", body.get("add_special_tokens", "prompt" in body))
        return self._encode(_utf8(text, "content"), adds=bool(adds))

    def text(self, body: Any) -> str:
        """Read the body of `/detokenize`."""
        tokens = body.get("tokens") if isinstance(body, dict) else None
        return self._text(self._checked_ids(tokens, "tokens"))

    def _text(self, prompt: Any) -> str:
        return prompt if isinstance(prompt, str) else str(self._tokenizer.decode(prompt))

    def _call(self, given: dict[str, Any], prompts: list[Asked], **about: Any) -> ApiRequest:
        options = given.get("stream_options") or {}
        has_usage = isinstance(options, dict) and bool(options.get("include_usage"))
        flags: dict[str, Any] = {
            "is_streamed": _flag(given, "stream"),
            "has_sources": _flag(given, "specds_sources"),
        }
        return ApiRequest(prompts, given.get("n", 1), has_usage=has_usage, **flags, **about)

    def _asked(
        self,
        given: dict[str, Any],
        ids: list[int],
        tenant: str,
        *,
        source: str | None = None,
        top_logprobs: int | None = None,
    ) -> Asked:
        if not ids:
            raise RequestError("the prompt is empty: pass at least one token", "prompt")
        context = self._model.context_length
        try:
            require_room(len(ids), context)
        except ValueError as error:
            raise RequestError(str(error), "messages", "context_length_exceeded") from None
        settings = {**self._model.settings}
        settings |= {name: given[name] for name in ("top_p", "min_p") if name in given}
        settings["top_k"] = max(given.get("top_k", settings.get("top_k", 0)), 0)
        if "temperature" in given:
            settings["do_sample"] = given["temperature"] > 0
            settings["temperature"] = max(given["temperature"], 1e-6)
        elif {"top_p", "min_p", "top_k"} & given.keys():
            settings["do_sample"] = True
        penalty = given.get("repetition_penalty", given.get("repeat_penalty"))
        if penalty is not None:
            settings["repetition_penalty"] = penalty
        settings["min_new_tokens"] = given.get("min_tokens", settings.get("min_new_tokens", 0))
        if biases := self._biases(given.get("logit_bias")):
            settings["sequence_bias"] = biases
        stops = _stops(given.get("stop"))
        lengths = [given[name] for name in ("max_completion_tokens", "max_tokens", "n_predict")
                   if given.get(name, -1) >= 0]  # fmt: skip
        most = min(lengths, default=context)
        matcher = None if source is None else self._matcher(source)
        return Asked(
            np.array(ids, dtype=np.int64),
            _of(Sampling, settings),
            _of(Processing, settings),
            most,
            given.get("frequency_penalty", 0.0),
            given.get("presence_penalty", 0.0),
            _flag(given, "ignore_eos"),
            stops,
            given.get("seed"),
            top_logprobs,
            matcher,
            tenant=tenant_of(tenant, given),
            ends=frozenset(filter(None, map(self._control_token, stops))),
            max_s=given["t_max_predict_ms"] / 1000
            if given.get("t_max_predict_ms", 0) > 0
            else math.inf,
        )

    def _matcher(self, source: str) -> Any:
        """Return the matcher of a grammar whose first tokens can be computed."""
        library = imported("llguidance")
        limits = library.LLParserLimits(step_max_items=_MOST_ITEMS, verbose_errors=False)
        try:
            matcher = library.LLMatcher(self._known_tokens, source, log_level=0, limits=limits)
        except ValueError as error:
            raise RequestError(str(error), "response_format") from None
        first = matcher.deep_copy()
        for _ in range(2):  # a row of the parser is as large as an object has properties
            allowed = np.unpackbits(
                np.frombuffer(first.compute_bitmask(), np.uint8), bitorder="little"
            )
            first.try_consume_tokens([int(allowed.argmax())])
        first.compute_bitmask()
        if first.is_error():
            fault = first.get_error().partition("\n")[0]
            raise RequestError(f"the grammar is too large: {fault}", "response_format")
        return matcher

    def _control_token(self, stop: str) -> int | None:
        """Return the control token that is spelled like a stop, which no text shows."""
        number: int | None = self._tokenizer.backend_tokenizer.token_to_id(stop)
        return number if number in self._tokenizer.all_special_ids else None

    def _biases(self, given: Any) -> dict[tuple[int, ...], float]:
        if given is None:
            return {}
        try:
            pairs = given.items() if isinstance(given, Mapping) else given
            found = {(int(token),): float(bias) for token, bias in pairs}
        except (TypeError, ValueError):
            found = None
        if (
            found is None
            or len(found) > 4096
            or not all(
                0 <= token < self._model.vocab_size and abs(bias) <= 100
                for (token,), bias in found.items()
            )
        ):
            raise RequestError(
                f"logit_bias must map ids of {self._model.vocab_size:,} tokens to numbers from "
                "-100 to 100",
                "logit_bias",
            )
        return {token: bias if bias > -100 else -math.inf for token, bias in found.items()}

    def _format(self, given: dict[str, Any]) -> str | None:
        form = given.get("response_format") or {"type": "text"}
        kind = form.get("type") if isinstance(form, dict) else None
        if kind == "text":
            return None
        schema: Any = {"type": "object"}
        if kind == "json_schema":
            named = form.get("json_schema")
            schema = named.get("schema") if isinstance(named, dict) else form.get("schema")
        elif kind != "json_object":
            schema = None
        if not isinstance(schema, dict):
            raise RequestError(
                "response_format must have the type text, json_object or json_schema, the last "
                "with a schema",
                "response_format",
            )
        return _grammar(schema, "response_format")

    def _predicted(self, given: dict[str, Any]) -> list[int] | None:
        if given.get("prediction") is None:
            return None
        text = text_of(given["prediction"])
        if text is None or len(text) > MAX_CHARS:
            raise RequestError(
                'prediction must be {"type": "content", "content": a string or a list of text '
                f"parts}} of at most {MAX_CHARS} characters",
                "prediction",
            )
        return self._encode(text, adds=False)[:MAX_IDS] if text else None

    def _encode(self, text: str, *, adds: bool) -> list[int]:
        if len(text) > _MOST_CHARS_A_TOKEN * self._model.context_length:
            raise RequestError(
                f"a text has {len(text):,} characters, too many for a context of "
                f"{self._model.context_length:,} tokens", "prompt", "context_length_exceeded"
            )  # fmt: skip
        return [*self._tokenizer.encode(text, add_special_tokens=adds)]

    def _prompt_ids(self, prompt: Any) -> list[int]:
        if isinstance(prompt, str):
            return self._encode(_utf8(prompt, "prompt"), adds=True)
        return self._checked_ids(prompt, "prompt")

    def _checked_ids(self, given: Any, name: str) -> list[int]:
        size = self._model.vocab_size
        if not isinstance(given, list) or not all(
            type(each) is int and 0 <= each < size for each in given
        ):
            raise RequestError(f"{name} must be a text, or ids of {size:,} tokens", name)
        return given

    def _chat_prompt(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], given: dict[str, Any]
    ) -> tuple[list[int], int | None, str]:
        """Return the prompt, where recurrent states are kept, and the last characters."""
        variables = given.get("chat_template_kwargs") or {}
        if not isinstance(variables, dict) or not _OF_TEMPLATES.isdisjoint(variables):
            names = ", ".join(sorted(_OF_TEMPLATES))
            raise RequestError(f"chat_template_kwargs must be an object without {names}",
                               "chat_template_kwargs")  # fmt: skip
        if "reasoning_effort" in given:
            variables = {"reasoning_effort": given["reasoning_effort"], **variables}
        if tools and "tools" not in self._template:
            messages, tools = with_tools_as_text(messages, tools), []
        more: dict[str, Any] = {"tools": tools, **variables} if tools else variables
        ids = self._rendered(messages, {**more, "add_generation_prompt": True})
        mark_at = None
        if self._has_marks:
            earlier = self._rendered(messages, more)
            pairs = enumerate(zip(ids, earlier, strict=False))
            differs = next((place for place, (a, b) in pairs if a != b), len(earlier))
            mark_at = min(differs, len(ids) - 1)
        return ids, mark_at, str(self._tokenizer.decode(ids[-8:]))

    def _rendered(self, messages: list[dict[str, Any]], more: dict[str, Any]) -> list[int]:
        """Return token ids; some templates join the arguments of calls as texts."""
        as_objects = [_with_arguments(message, json.loads) for message in messages]
        try:
            return self._template_ids(as_objects, more)
        except TemplateError as error:
            as_texts = [_with_arguments(message, str) for message in messages]
            if as_texts == as_objects:
                raise RequestError(str(error), "messages") from None
            try:
                return self._template_ids(as_texts, more)
            except TemplateError:
                raise RequestError(str(error), "messages") from None

    def _template_ids(self, messages: list[dict[str, Any]], more: dict[str, Any]) -> list[int]:
        if self._spelled is not None:
            return self._spelled.token_ids(messages, **more)
        ids = self._tokenizer.apply_chat_template(messages, return_dict=True, **more)["input_ids"]
        return [*ids]

    def _filled(
        self, before: Any, after: Any, files: Sequence[tuple[str, str]] = (), room: int = 0
    ) -> list[int]:
        """Return a prompt that is filled in the middle and leaves room for tokens."""
        if not self.fill:
            raise RequestError("the model's file names no tokens to fill in the middle",
                               "suffix", status=501)  # fmt: skip
        before, after = _utf8(before, "prompt"), _utf8(after, "suffix")
        most: int = self._model.context_length - room
        return self.fill.token_ids(before, after, files, most)


def tenant_of(tenant: str, given: Mapping[str, Any]) -> str:
    """Return the tenant of a key and, if the request names one, of its user."""
    user = given.get("safety_identifier") or given.get("user")
    return f"{tenant}/{user}" if user and tenant else str(user or tenant)


def _of(kind: Any, settings: dict[str, Any]) -> Any:
    names = {each.name for each in fields(kind)}
    return kind(**{name: value for name, value in settings.items() if name in names})


def _checked(body: Any) -> dict[str, Any]:
    """Return the fields of a body that are not null, and check the plain ones."""
    if not isinstance(body, dict):
        raise RequestError("the body must be a JSON object")
    given = {name: value for name, value in body.items() if value is not None}
    # Each once: editors send them with each key.
    unknown = sorted(given.keys() - _KNOWN - _logged)[: _MOST_LOGGED - len(_logged)]
    if unknown:
        _logged.update(unknown)
        _log.warning("fields of requests are ignored: %s", ", ".join(map(repr, unknown)))
    for name, (is_whole, least, most) in _NUMBERS.items():
        if name in given:
            value = given[name]
            is_number = type(value) is int or (not is_whole and type(value) is float)
            if is_whole and type(value) is float and value.is_integer():
                given[name], is_number = int(value), True
            if not (is_number and least <= value <= most):
                kind = "an integer" if is_whole else "a number"
                raise RequestError(f"{name} must be {kind} from {least} to {most}", name)
    for name in _TEXTS:
        if name in given:
            _utf8(given[name], name)
    return given


def _utf8(text: Any, name: str) -> str:
    try:
        text.encode()
        return str(text)
    except (AttributeError, UnicodeEncodeError):
        raise RequestError(f"{name} must be a text", name) from None


def _text_field(given: dict[str, Any], name: str) -> str:
    return _utf8(given.get(name, ""), name)


def _flag(given: dict[str, Any], name: str) -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise RequestError(f"{name} must be true or false", name)
    return value


def _stops(given: Any) -> tuple[str, ...]:
    stops = [given] if isinstance(given, str) else given or []
    if (
        not isinstance(stops, list)
        or len(stops) > _MOST_STOPS
        or not all(isinstance(stop, str) and len(stop) <= _MOST_STOP_CHARS for stop in stops)
    ):
        raise RequestError(
            f"stop must be a text or at most {_MOST_STOPS}, each of at most {_MOST_STOP_CHARS} "
            "characters",
            "stop",
        )
    return tuple(_utf8(stop, "stop") for stop in stops if stop)


def _grammar(schema: dict[str, Any], field: str) -> str:
    try:
        return schema_source(schema)
    except ValueError as error:
        raise RequestError(str(error), field) from None


def _messages(given: Any) -> list[dict[str, Any]]:
    """Check messages, and join their texts."""
    if not isinstance(given, list) or not given:
        raise RequestError("messages must be a list of at least one message", "messages")
    if len(given) > _MOST_MESSAGES:
        raise RequestError(
            f"messages must have at most {_MOST_MESSAGES:,} messages, not {len(given):,}",
            "messages",
        )
    found = []
    for number, message in enumerate(given):
        at = f"messages[{number}]"
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise RequestError(f"{at} must be an object with a role: {', '.join(_ROLES)}", at)
        content = message.get("content")
        if isinstance(content, list):
            parts = [
                p.get("text")
                for p in content
                if isinstance(p, dict) and p.get("type") in ("text", "input_text", "refusal")
            ]
            if len(parts) != len(content):
                raise RequestError(
                    f"{at} has parts that are not text: the model reads text alone", at
                )
            content = "".join(_utf8(part, at) for part in parts)
        elif content is not None:
            _utf8(content, at)
        elif not message.get("tool_calls") and message["role"] != "assistant":
            raise RequestError(f"{at} must have content", at)
        role = "system" if message["role"] == "developer" else message["role"]
        calls = message.get("tool_calls")
        if calls is not None and not (isinstance(calls, list) and all(map(_is_call, calls))):
            raise RequestError(f"{at}.tool_calls must be calls of functions", at)
        found.append({**message, "role": role, "content": content or ""})
    return found


def _is_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _with_arguments(message: dict[str, Any], read: Any) -> dict[str, Any]:
    """Return a message whose calls have arguments as objects, or as texts."""
    if not message.get("tool_calls"):
        return message
    calls = []
    for call in message["tool_calls"]:
        function = {"arguments": "{}", **call["function"]}
        given = function["arguments"]
        text = given if isinstance(given, str) else json.dumps(given)
        try:
            function["arguments"] = read(text)
        except ValueError:
            raise RequestError("arguments of a call must be JSON", "messages") from None
        calls.append({**call, "function": function})
    return {**message, "tool_calls": calls}


def _tools(given: Any) -> list[dict[str, Any]]:
    tools = given or []
    if not isinstance(tools, list) or len(tools) > 128 or not all(map(_is_call, tools)):
        raise RequestError("tools must be at most 128 functions, each with a name", "tools")
    return tools


def _forced(choice: Any, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools of which one must be called; none if the model chooses."""
    if choice in (None, "auto", "none"):
        return []
    named = tools
    if isinstance(choice, dict):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        named = [tool for tool in tools if tool["function"]["name"] == name]
    if not named or not (choice == "required" or isinstance(choice, dict)):
        raise RequestError(
            "tool_choice must be none, auto, required, or a function of tools", "tool_choice"
        )
    return named


def _schema_of_calls(tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the JSON schema of a call of one of the tools."""
    schemas = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool["function"]["name"]},
                "arguments": tool["function"].get("parameters") or {"type": "object"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def with_tools_as_text(
    messages: list[dict[str, Any]], tools: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return messages for a template without tools: these, calls and results become text."""
    about = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    text = (
        f"You can call these functions:\n{about}\nTo call one, write\n<tool_call>\n"
        '{"name": NAME, "arguments": {...}}\n</tool_call>'
    )
    found: list[dict[str, Any]] = []
    for message in messages:
        content, role = message["content"], message["role"]
        for call in message.get("tool_calls") or ():
            function = call["function"]
            arguments = function.get("arguments") or "{}"
            spelled = arguments if isinstance(arguments, str) else json.dumps(arguments)
            spelled = f'{{"name": {json.dumps(function["name"])}, "arguments": {spelled}}}'
            content += f"\n<tool_call>\n{spelled}\n</tool_call>"
        if role in ("tool", "function"):
            content, role = f"<tool_response>\n{content}\n</tool_response>", "user"
        found.append({"role": role, "content": content.lstrip("\n")})
    if found[0]["role"] == "system":
        found[0]["content"] += f"\n\n{text}"
        return found
    return [{"role": "system", "content": text}, *found]
