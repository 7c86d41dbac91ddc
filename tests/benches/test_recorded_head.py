"""Benchmark of a trained head with retrieval: its rows, its chains and its table."""

import json

import recorded_head
from recorded_head import Answer

TEXT = [1, 2, 3, 1, 2, 4, 1, 2, 4, 5]


def row(answer, lengths):
    recorded = {"acc_eagle": {"acc_len": lengths}}
    return {"prompt_token_ids": [1, 2, 3], "generated_token_ids": answer, **recorded}


def test_chain_has_the_right_tokens_and_then_what_followed_before():
    answer = Answer(TEXT, 3, [2, 0, 0, 9, 0, 0, 0])
    assert answer.chain(3, 4) == [1, 2, 3]  # 3 followed 2 before, where 4 does now
    assert answer.chain(3, 1) == [1]
    assert answer.chain(4, 2) == [0]  # nothing else ever followed 1
    assert answer.chain(6, 9) == [1, 2, 4, 5]  # the text ends


def test_first_wrong_token_is_never_the_recorded_one():
    answer = Answer(TEXT, 3, [0] * 7)
    for place in range(3, len(TEXT)):
        assert answer.chain(place, 5)[0] != TEXT[place]


def test_table_has_head_retrieval_and_both(tmp_path, capsys):
    path = tmp_path / "combined_x.jsonl"
    # The head is right at two of three tokens; the last row is of another text.
    rows = [row(TEXT[3:], [3, 2, 1, 3, 2, 1, 1]), row([7, 7], [1])]
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    recorded_head.main([str(path), "--max-nodes", "4"])
    *_, line = capsys.readouterr().out.strip().splitlines()
    about, nodes, head, retrieval, both, *_ = (cell.strip() for cell in line.strip("|").split("|"))
    assert (about, nodes, head) == ("x, 1", "4", "2.33")
    assert float(both) >= float(retrieval) > 1
