"""Several sequences in one call: who leaves, what only one may have, and what fails."""

import pytest
import torch
from transformers import DynamicCache, LogitsProcessor, StoppingCriteria

from models import (
    GREEDY,
    Drafter,
    Recorder,
    Session,
    mixed_drafter,
    prompt,
    random_drafter,
    tiny_model,
)
from specds.generation import generate
from specds.verify import StaticRunner

PAD = 1


def test_a_finished_row_leaves_the_batch():
    model = tiny_model("llama")
    ids = torch.cat([prompt(seed=seed) for seed in range(3)])
    free = model.generate(ids, max_new_tokens=24, **GREEDY)
    eos = int(free[1, 30])
    settings = {"max_new_tokens": 24, "eos_token_id": eos, "pad_token_id": PAD, **GREEDY}
    expected = model.generate(ids, **settings)
    assert (expected == PAD).any()
    widths = []
    forward = StaticRunner.verify_rows

    def spy(self, token_ids, trees):
        widths.append(len(token_ids))
        return forward(self, token_ids, trees)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StaticRunner, "verify_rows", spy)
        output = generate(model, ids, random_drafter(), max_nodes=4, self_check=False, **settings)
    assert output.sequences.tolist() == expected.tolist()
    ends = [int((row == PAD).sum()) for row in expected]
    assert widths[0] == 3
    assert widths[-1] == ends.count(0) < 3


class Stateful(LogitsProcessor):
    """Right for a batch, where it sees all rows; wrong if rows shared it."""

    def __init__(self):
        self.before = None

    def __call__(self, input_ids, scores):
        changed = scores if self.before is None else scores - 0.5 * self.before
        self.before = scores.clone()
        return changed


class AnyRow(StoppingCriteria):
    """Ends all rows of a batch at once."""

    def __call__(self, input_ids, scores, **kwargs):
        return torch.full((len(input_ids),), bool((input_ids[:, -1] % 13 == 0).any()))


NOT_OF_BATCHES = {
    "prefix": ({"prefix_allowed_tokens_fn": lambda *_: [3]}, "PrefixConstrainedLogitsProcessor"),
    "encoder": ({"encoder_repetition_penalty": 1.2}, "EncoderRepetitionPenaltyLogitsProcessor"),
    "own processor": ({"logits_processor": [Stateful()]}, "Stateful cannot be used with several"),
    "own criterion": ({"stopping_criteria": [AnyRow()]}, "AnyRow cannot be used with several"),
    "cache": ({"cache": DynamicCache()}, "cache cannot be used: it works for one prompt"),
}


@pytest.mark.parametrize("name", NOT_OF_BATCHES)
def test_what_only_one_sequence_can_have_is_refused(name):
    settings, message = NOT_OF_BATCHES[name]
    ids = prompt(10).view(2, 5)
    with pytest.raises(ValueError, match=message):
        generate(tiny_model("llama"), ids, random_drafter(), max_new_tokens=3, **settings)


def test_sessions_are_finished_when_one_of_them_fails():
    def fail(_, position, max_nodes):
        raise RuntimeError("out of ideas")

    drafter = Drafter(fail)
    ids = prompt(10).view(2, 5)
    with pytest.raises(RuntimeError, match="out of ideas"):
        generate(tiny_model("llama"), ids, drafter, max_new_tokens=9)
    assert [session.finished for session in drafter.sessions] == [1, 1]


@pytest.mark.parametrize("last", [2, 5])
def test_a_streamer_that_fails_ends_the_session_and_harms_no_later_text(last):
    class Failing(Recorder):
        def put(self, value):
            super().put(value)
            if len(self.received) == last:
                raise RuntimeError("the reader is gone")

    model = tiny_model("llama")
    settings = {"max_new_tokens": 20, **GREEDY}
    expected = model.generate(prompt(), **settings).tolist()
    drafter = mixed_drafter(expected[0])
    with pytest.raises(RuntimeError, match="the reader is gone"):
        generate(model, prompt(), drafter, streamer=Failing(), **settings)
    assert [session.finished for session in drafter.sessions] == [1]
    assert generate(model, prompt(), drafter, **settings).sequences.tolist() == expected


def test_a_session_that_fails_to_finish_leaves_none_open(monkeypatch):
    drafter = random_drafter()
    finish = Session.finish

    def fail_at_first(session):
        finish(session)
        if session is drafter.sessions[0]:
            raise RuntimeError("no room")

    monkeypatch.setattr(Session, "finish", fail_at_first)
    ids = prompt(10).view(2, 5)
    with pytest.raises(RuntimeError, match="no room"):
        generate(tiny_model("llama"), ids, drafter, max_new_tokens=3)
    assert [session.finished for session in drafter.sessions] == [1, 1]
