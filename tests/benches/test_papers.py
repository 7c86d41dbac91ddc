"""The figures of the papers: what is counted, and that each is drawn."""

import pytest
import torch

import papers
from models import tiny_model
from replays import code_answers
from specds.bench.transcripts import Transcript


@pytest.mark.parametrize("part", papers.PARTS)
def test_each_figure_is_a_table(part, tmp_path, demo_tokenizer, monkeypatch, capsys):
    monkeypatch.setattr(papers, "ROWS", (1, 3))
    monkeypatch.setattr(papers, "LENGTHS", (2, 4))
    files = code_answers(tmp_path, demo_tokenizer, one=(0, 40))
    given = ("--transcripts", files / "one.jsonl", "--datastore", files / "code.specds")
    papers.main([part, *map(str, given), "--prompts", "1", "--new-tokens", "8"])
    *_, head, _, first, last = capsys.readouterr().out.splitlines()[-4:]
    assert head.count("|") == first.count("|") == last.count("|") > 2


def test_a_model_that_drafts_for_itself_is_never_rejected_and_never_pays(monkeypatch):
    model = tiny_model("llama")
    monkeypatch.setattr(papers, "load_model", lambda *_, **__: (model, None))
    ids = torch.tensor([[4, 1]])
    text = model.generate(ids, do_sample=False, max_new_tokens=12)[0, 2:].numpy()
    own = [Transcript("demo", ids[0].numpy(), text)]
    # Two forwards give six tokens each, for five passes at a cost of 0.19 each.
    assert papers.speed_up(["small"], "sd", own, 5) == pytest.approx(12 / (2 + 10 * 0.19))
    other = [Transcript("demo", ids[0].numpy(), (text + 1) % 50)]
    assert papers.speed_up(["small"], "sd", other, 5) < 1
