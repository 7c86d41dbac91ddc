"""Transcripts: fields of a row, and errors of invalid rows."""

import gzip
import json
import pickle

import pytest

from specds.bench.transcripts import TranscriptError, read_transcripts
from specds.models.tokenization import vocab_size


def read(path, demo_tokenizer, limit=None):
    return read_transcripts(path, demo_tokenizer, vocab_size(demo_tokenizer), limit)


GOOD = {"id": "1", "prompt": "def add(", "completion": "a, b):\n    return a + b\n"}


def test_text_is_tokenized_and_completion_ends_with_eos(tmp_path, demo_tokenizer):
    (tmp_path / "good.jsonl").write_text(json.dumps(GOOD) + "\n\n" + json.dumps(GOOD))
    first, second = read(tmp_path / "good.jsonl", demo_tokenizer)
    assert first.source == second.source == "good"
    assert first.prompt_ids.tolist() == demo_tokenizer.encode(GOOD["prompt"])
    body = demo_tokenizer.encode(GOOD["completion"], add_special_tokens=False)
    assert first.completion_ids.tolist() == [*body, demo_tokenizer.eos_token_id]
    assert len(read(tmp_path / "good.jsonl", demo_tokenizer, limit=1)) == 1


def test_recorded_ids_are_used_unchanged(tmp_path, demo_tokenizer):
    row = {**GOOD, "prompt_ids": [1, 2], "completion_ids": [3, 4]}
    with gzip.open(tmp_path / "ids.jsonl.gz", "wt") as file:
        file.write(json.dumps(row))
    [one] = read(tmp_path / "ids.jsonl.gz", demo_tokenizer)
    found = one.source, one.prompt_ids.tolist(), one.completion_ids.tolist()
    assert found == ("ids", [1, 2], [3, 4])


def test_row_may_have_optional_fields(tmp_path, demo_tokenizer):
    suggested = [[1, 2], [0, 2]]
    more = {"workload": "edits", "group": "g", "completion_ids": [3, 4], "suggested": suggested}
    rows = [{**GOOD, **more, "predicted_output": "a, b"}, {**GOOD, "predicted_output_ids": [7]}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    first, second = read(tmp_path / "rows.jsonl", demo_tokenizer)
    assert (first.source, first.group, second.source) == ("edits", "g", "rows")
    assert first.suggested == [(1, 2), (0, 2)]
    assert second.suggested == []
    expected = demo_tokenizer.encode("a, b", add_special_tokens=False)
    assert first.predicted_ids.tolist() == expected
    assert second.predicted_ids.tolist() == [7]
    assert len(read_transcripts(tmp_path / "rows.jsonl", demo_tokenizer, 10, 1)) == 1


def test_conversation_is_replayed_from_its_last_message(tmp_path, demo_tokenizer):
    tokenizer = pickle.loads(pickle.dumps(demo_tokenizer))
    tokenizer.chat_template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
        "{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}<|endoftext|>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    calls = [{"function": {"name": "f", "arguments": '{"a": 1}'}}]
    answer = {"role": "assistant", "content": None, "tool_calls": calls}
    path = tmp_path / "calls.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "hi"}, answer]}))
    [one] = read(path, tokenizer)
    assert tokenizer.decode(one.prompt_ids) == "<user>hi<|endoftext|><assistant>"
    written = '{"name": "f", "arguments": {"a": 1}}<|endoftext|>'
    assert tokenizer.decode(one.completion_ids) == written
    path.write_text(json.dumps({"messages": [answer, {"role": "user", "content": "hi"}]}))
    with pytest.raises(TranscriptError, match="the last message of a conversation must be the"):
        read(path, tokenizer)


IDS = {"prompt": "a", "completion_ids": [1, 2, 3]}
BAD_ROWS = {
    "no pairs": ({**IDS, "suggested": 3}, r"`suggested` must be a list of 3 pairs"),
    "too few": ({**IDS, "suggested": [[0, 1]]}, r"`suggested` must be a list of 3 pairs"),
    "no pair": ({**IDS, "suggested": [[0, 1], [1], [0, 0]]}, r"holds \[1\] at position 1, not how"),
    "more right": ({**IDS, "suggested": [[2, 1], [0, 0]]}, r"holds \[2, 1\] at position 0, not"),
    "very long": ({**IDS, "suggested": [[0, 9999], [0, 1]]}, r"at most 1024"),
    "group": ({**IDS, "group": 7}, r"`group` must be a text, not int"),
    "expected": ({**IDS, "predicted_output_ids": [-1]}, r"`predicted_output_ids` holds -1"),
    "no completion": ({"prompt": "a"}, r"neither `completion` nor `completion_ids`"),
    "empty completion": ({"prompt": "a", "completion": ""}, r"`completion` is empty"),
    "empty prompt": ({"prompt": "", "completion": "a"}, r"`prompt` is empty"),
    "a number": ({"prompt": 3, "completion": "a"}, r"`prompt` must be a text, not int"),
    "text for ids": ({"prompt_ids": "a", "completion": "a"}, r"must be a list of token ids"),
    "large id": ({"prompt_ids": [1, 10**6], "completion": "a"}, r"holds 1000000 at position 1"),
    "true": ({"prompt": "a", "completion_ids": [True]}, r"holds True at position 0"),
    "no template": ({"messages": [{"role": "assistant", "content": "a"}]}, r"with a chat template"),
    "a list": ([], r"not a JSON object, but list"),
}
for field in ("prompt", "predicted_output", "group", "workload"):
    message = rf"`{field}` holds half a character, '\\ud83d', at position 3"
    BAD_ROWS[f"half in {field}"] = ({**IDS, "completion": "a", field: "ab \ud83d"}, message)


@pytest.mark.parametrize("name", BAD_ROWS)
def test_bad_row_is_reported_with_its_position(tmp_path, demo_tokenizer, name):
    row, message = BAD_ROWS[name]
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(GOOD) + "\n" + json.dumps(row))
    with pytest.raises(TranscriptError, match=r"rows\.jsonl:2: .*" + message) as error:
        read(path, demo_tokenizer)
    assert "\n" not in str(error.value)


def test_file_without_transcripts_is_rejected(tmp_path, demo_tokenizer):
    (tmp_path / "broken.jsonl").write_text("{")
    with pytest.raises(TranscriptError, match=r"broken\.jsonl:1: not JSON"):
        read(tmp_path / "broken.jsonl", demo_tokenizer)
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(TranscriptError, match="has no transcripts"):
        read(tmp_path / "empty.jsonl", demo_tokenizer)
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(json.dumps(GOOD).encode())[:-4])
    with pytest.raises(ValueError, match="damaged or cut short"):
        read(tmp_path / "cut.jsonl.gz", demo_tokenizer)
