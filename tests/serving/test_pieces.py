"""Texts of models split into reasoning, content and calls, however they are cut into pieces."""

import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_models import byte_tokenizer, write_gguf
from specds._core import GgufFile
from specds.generation.processors import Processing
from specds.generation.sampling import Sampling
from specds.models.tokenization import FastTokenizer
from specds.serving.job import Asked, TextJob
from specds.serving.pieces import CALLS, Piece, Splitter, Style

CALL = Piece("call", '{"city": "Oslo"}', "weather")
ARGUMENTS = CALL.text
BAR = "\N{FULLWIDTH VERTICAL LINE}"
HERMES = f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
TEXTS = {
    "hermes": ("<tool_call></think>", f"<think>\nHm.\n</think>\n\nI look.\n{HERMES}"),
    "qwen coder": (
        "<tool_call><function=",
        "I look.\n<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n"
        "</function>\n</tool_call>",
    ),
    "glm": (
        "<tool_call><arg_key>",
        "I look.\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
        "</tool_call>",
    ),
    "lfm2": (
        "<|tool_call_start|>",
        'I look.<|tool_call_start|>[weather(city="Oslo")]<|tool_call_end|>',
    ),
    "phi 4": (
        "<|tool_call|>",
        f'I look.<|tool_call|>[{{"name": "weather", "arguments": {ARGUMENTS}}}]<|/tool_call|>',
    ),
    "mistral": (
        "[TOOL_CALLS]",
        f'I look.[TOOL_CALLS][{{"name": "weather", "arguments": {ARGUMENTS}}}]',
    ),
    "mistral 2": ("[TOOL_CALLS][ARGS]", f"I look.[TOOL_CALLS]weather[ARGS]{ARGUMENTS}"),
    "llama 3": ("<|python_tag|>", f'{{"name": "weather", "parameters": {ARGUMENTS}}}'),
    "llama 3 tagged": (
        "<|python_tag|>",
        f'I look.<|python_tag|>{{"name": "weather", "parameters": {ARGUMENTS}}}',
    ),
    "deepseek": (
        f"<{BAR}tool▁calls▁begin{BAR}>",
        f"I look.<{BAR}tool▁calls▁begin{BAR}><{BAR}tool▁call▁begin{BAR}>function"
        f"<{BAR}tool▁sep{BAR}>weather\n```json\n{ARGUMENTS}\n```<{BAR}tool▁call▁end{BAR}><{BAR}tool▁calls▁end{BAR}>",
    ),
    "kimi": (
        "<|tool_calls_section_begin|>",
        "I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
        f"<|tool_call_argument_begin|>{ARGUMENTS}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    "function gemma": (
        "<start_function_call>",
        "I look.<start_function_call>call:weather{city:<escape>Oslo<escape>}<end_function_call>",
    ),
    "gpt-oss": (
        "<|channel|>",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>"
        "I look.<|end|><|start|>assistant<|channel|>commentary to=functions.weather "
        f"<|constrain|>json<|message|>{ARGUMENTS}<|call|>",
    ),
}


def split(style, parts, *, in_reasoning=False):
    """The pieces of a text in these parts, joined by kind."""
    splitter, found = Splitter(style, in_reasoning), []
    for part in parts:
        found += splitter.add(part)
    found += splitter.end()
    texts = {"content": "", "reasoning": ""}
    for piece in found:
        if piece.kind != "call":
            texts[piece.kind] += piece.text
    return (
        texts["content"].strip(),
        texts["reasoning"].strip(),
        [p for p in found if p.kind == "call"],
    )


@pytest.mark.parametrize("family", TEXTS)
@settings(max_examples=25)
@given(data=st.data())
def test_calls_of_each_family(family, data):
    template, text = TEXTS[family]
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    content, reasoning, calls = split(Style.of(template, has_tools=True), parts)
    assert calls == [CALL]
    assert content == ("" if family == "llama 3" else "I look.")
    assert reasoning == ("Hm." if family in ("hermes", "gpt-oss") else "")


def test_several_calls_follow_each_other():
    content, _, calls = split(Style.of("<tool_call>", has_tools=True), [f"{HERMES}\n{HERMES}\n"])
    assert (content, calls) == ("", [CALL, CALL])
    both = '[{"name": "a", "arguments": {}}, {"name": "b", "arguments": {}}]'
    _, _, calls = split(Style.of("[TOOL_CALLS]", has_tools=True), [f"[TOOL_CALLS]{both}"])
    assert [call.name for call in calls] == ["a", "b"]


def test_without_tools_a_mark_is_text():
    assert split(Style.of("<tool_call>", has_tools=False), [HERMES]) == (HERMES, "", [])


@pytest.mark.parametrize("body", ["", "no JSON", '{"arguments": {}}', "[1]", "{", "[[]]"])
def test_a_body_without_a_call_stays_text(body):
    content, _, calls = split(
        Style.of("<tool_call>", has_tools=True), [f"<tool_call>{body}!</tool_call>"]
    )
    assert calls == []
    assert body in content


def test_a_prompt_may_begin_the_reasoning():
    style = Style.of("<think></think>", has_tools=False)
    assert split(style, ["Hm.", "</thi", "nk>\n\nYes."], in_reasoning=True)[:2] == ("Yes.", "Hm.")
    assert split(style, ["Hm."], in_reasoning=True)[:2] == ("", "Hm.")


@given(st.text(alphabet='<tool_cal>/{}[]"name:,AGS|python', max_size=60))
def test_any_text_is_split_without_an_error_and_none_is_lost(text):
    style = Style.of("".join(marks.opening for marks in CALLS), has_tools=True)
    content, _, calls = split(style, [*text])
    assert calls or "".join(content.split()) == "".join(text.split()) or "<" in text or "[" in text


def test_a_forced_call_is_json_alone():
    style = Style.of("", has_tools=True, is_forced=True)
    assert split(style, [json.dumps({"name": "weather", "arguments": {"city": "Oslo"}})]) == (
        "",
        "",
        [CALL],
    )


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("<tool_call>", "<tool_call><function=f>" + "<parameter=a>" * 60_000),
        ("<tool_call>", "<tool_call>f" + "<arg_key>" * 60_000),
        ("<tool_call>", "<tool_call>" + "[" * 500_000),
        ("[TOOL_CALLS]", "[TOOL_CALLS]" + "a" * 500_000 + "[ARGS]" + " " * 500_000 + "[ARGS]"),
        (
            "<start_function_call>",
            "<start_function_call>call:f{" + "a" * 500_000 + "}<end_function_call>",
        ),
        (
            "<start_function_call>",
            "<start_function_call>call:f{" + "a:<escape>" * 60_001 + "}<end_function_call>",
        ),
        ("<|tool_call_start|>", "<|tool_call_start|>[f(a=" + "(" * 500_000),
        (f"<{BAR}tool▁calls▁begin{BAR}>", f"<{BAR}tool▁calls▁begin{BAR}>" + "<" * 500_000),
        ("<|tool_calls_section_begin|>", "<|tool_calls_section_begin|>" + "a" * 500_000),
    ],
)
def test_long_texts_are_read_in_a_time_that_grows_with_them(template, text):
    """A text that is read in the square of its length would take minutes."""
    content, _, calls = split(Style.of(template, has_tools=True), [text])
    assert content or calls


def test_plain_and_quoted_values_of_gemma():
    text = "<start_function_call>call:f{a:<escape>x, y<escape>,b:3,c:<escape>z<escape>}"
    _, _, (call,) = split(Style.of("<start_function_call>", has_tools=True), [text])
    assert json.loads(call.text) == {"a": "x, y", "b": 3, "c": "z"}


def test_values_may_contain_marks():
    body = "<function=write>\n<parameter=text>\na <parameter=b> c\n</parameter>\n</function>"
    _, _, (call,) = split(Style.of("<tool_call>", has_tools=True), [f"<tool_call>{body}"])
    assert json.loads(call.text) == {"text": "a <parameter=b> c"}


@pytest.mark.parametrize("family", TEXTS)
def test_calls_whose_marks_are_control_tokens(family, tmp_path):
    """The marks are tokens that no other text shows, as in the files of the families."""
    template, text = TEXTS[family]
    marks = sorted({*re.findall(rf"<[/|{BAR}]?[\w▁]+[|{BAR}]?>|\[[A-Z_]+\]", text)})
    fields = byte_tokenizer()
    fields["tokenizer.ggml.tokens"] = [*fields["tokenizer.ggml.tokens"], *marks]
    fields["tokenizer.ggml.token_type"] = [*fields["tokenizer.ggml.token_type"], *[3] * len(marks)]
    write_gguf(tmp_path / "tokens.gguf", fields, {})
    tokenizer = FastTokenizer.of_gguf(GgufFile(tmp_path / "tokens.gguf"), "tokens.gguf")
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert {*range(258, 258 + len(marks))} <= {*ids}
    # Of the llama family, a call alone needs no mark.
    assert marks or family == "llama 3"
    updates, style = [], Style.of(template, has_tools=True)
    asked = Asked(np.zeros(1, np.int64), Sampling(), Processing(), 10_000, style=style)
    job = TextJob(asked, tokenizer, frozenset([257]), updates.append)
    for number in [*ids, 257]:
        job.take(np.array([[number]]))
        job.send_update()
    job.send_update(is_end=True)
    pieces = [piece for update in updates for piece in update.pieces]
    assert [piece for piece in pieces if piece.kind == "call"] == [CALL]
    assert updates[-1].finish == "tool_calls"
    content = "".join(piece.text for piece in pieces if piece.kind == "content").strip()
    assert content == ("" if family == "llama 3" else "I look.")
