"""Several sequences in one call: finished rows, refused options, and failures."""

import pytest
import torch
from transformers import DynamicCache, LogitsProcessor, StoppingCriteria

from models import (
    GREEDY,
    Recorder,
    Session,
    decodes_alike,
    mixed_drafter,
    plain_generate,
    prompt,
    random_drafter,
    tiny_model,
    tree_generate,
)
from specds.generation import generate
from specds.transformers.verify.packed import PackedRunner

PAD = 1


def test_finished_row_leaves_the_batch(monkeypatch):
    model = tiny_model("llama")
    ids = torch.cat([prompt(seed=seed) for seed in range(3)])
    free = model.generate(ids, max_new_tokens=24, **GREEDY)
    eos = int(free[1, 30])
    mode = {"eos_token_id": eos, "pad_token_id": PAD, **GREEDY}
    widths, verify = [], PackedRunner.verify_rows
    monkeypatch.setattr(
        PackedRunner,
        "verify_rows",
        lambda self, ids, trees: widths.append(len(ids)) or verify(self, ids, trees),
    )
    output = decodes_alike(model, num_tokens=24, ids=ids, mode=mode, check_model=False)
    ends = [int((row == PAD).sum()) for row in output.sequences]
    assert widths[0] == 3
    assert widths[-1] == ends.count(0) < 3


class PreviousScores(LogitsProcessor):
    """A processor with a state, which is wrong if each row calls it."""

    def __init__(self):
        self.before = None

    def __call__(self, input_ids, scores):
        changed = scores if self.before is None else scores - 0.5 * self.before
        self.before = scores.clone()
        return changed


class AnyRow(StoppingCriteria):
    """A criterion that ends all rows of a batch at once."""

    def __call__(self, input_ids, scores, **kwargs):
        return torch.full((len(input_ids),), bool((input_ids[:, -1] % 13 == 0).any()))


NOT_OF_BATCHES = {
    "encoder": ({"encoder_repetition_penalty": 1.2}, "EncoderRepetitionPenaltyLogitsProcessor"),
    "own processor": (
        {"logits_processor": [PreviousScores()]},
        "PreviousScores cannot be used with several",
    ),
    "own criterion": ({"stopping_criteria": [AnyRow()]}, "AnyRow cannot be used with several"),
    "cache": ({"cache": DynamicCache()}, "cache cannot be used: it works for one prompt"),
}


@pytest.mark.parametrize("name", NOT_OF_BATCHES)
def test_options_of_a_single_sequence_are_refused_in_a_batch(name):
    settings, message = NOT_OF_BATCHES[name]
    ids = prompt(10).view(2, 5)
    with pytest.raises(ValueError, match=message):
        generate(tiny_model("llama"), ids, random_drafter(), max_new_tokens=3, **settings)


@pytest.mark.parametrize("method", ["draft", "finish"])
def test_failed_session_finishes_all_sessions(method, monkeypatch):
    drafter, plain = random_drafter(), getattr(Session, method)

    def fail_at_first(session, *args):
        result = plain(session, *args)
        if session is drafter.sessions[0]:
            raise RuntimeError("out of ideas")
        return result

    monkeypatch.setattr(Session, method, fail_at_first)
    with pytest.raises(RuntimeError, match="out of ideas"):
        generate(tiny_model("llama"), prompt(10).view(2, 5), drafter, max_new_tokens=3)
    assert [session.finished for session in drafter.sessions] == [1, 1]


@pytest.mark.parametrize("last", [2, 5])
def test_failed_streamer_finishes_the_session_and_later_texts_are_right(last):
    class Failing(Recorder):
        def put(self, value):
            super().put(value)
            if len(self.received) == last:
                raise RuntimeError("the reader is gone")

    model = tiny_model("llama")
    drafter = mixed_drafter(plain_generate(model, **GREEDY))
    with pytest.raises(RuntimeError, match="the reader is gone"):
        tree_generate(model, drafter, streamer=Failing(), **GREEDY)
    assert [session.finished for session in drafter.sessions] == [1]
    decodes_alike(model, drafter)
