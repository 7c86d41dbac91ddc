"""Random requests with each kind of forward pass: the whole result of `model.generate`."""

import random

import pytest
import torch

from fuzz_generate import drawn, faults, outcome
from passes import Accepting
from recorded import record
from specds.generation.loop import Row
from specds.transformers.accept import draws
from specds.transformers.accept.on_host import Emitter, Sampler

# Families whose passes can be recorded.
PLAIN = ["llama", "mistral", "qwen3", "gemma3", "gpt2", "opt", "deepseek_v3"]
WAYS = {"as they are": (180, None), "recorded": (60, "packed"), "by tensors": (60, Accepting)}


@pytest.mark.filterwarnings("ignore:(.*generation flags|Unfeasible length):UserWarning")
@pytest.mark.parametrize("way", WAYS)
def test_random_requests_equal_the_baseline(way, monkeypatch):
    number, verification = WAYS[way]
    if way == "recorded":
        record(monkeypatch, 0, 4, 16, 63, slots=(64, 128))
    num_accepted, kinds = 0, set()
    for seed in range(number):
        rng = random.Random(f"{way} {seed}")
        request = drawn(rng)
        request["settings"].pop("grammar", None)  # `make fuzz-generate` draws grammars
        if verification is not None:
            request |= {"family": rng.choice(PLAIN), "verification": verification}
        kind, wrong, accepted = outcome(request)
        assert not wrong, (kind, request)
        num_accepted += accepted
        kinds.add(kind)
    assert "equal" in kinds
    assert num_accepted > number


def shown_late(monkeypatch):
    put = Emitter.emit
    monkeypatch.setattr(Emitter, "emit", lambda self, token: put(self, token + (token == 50)))


def scores_are_halved(monkeypatch):
    call = Sampler.__call__

    def halved(self, *arguments):
        token = call(self, *arguments)
        self.scores[-1] = self.scores[-1] / 2
        return token

    monkeypatch.setattr(Sampler, "__call__", halved)


def drafted_is_not_noted(monkeypatch):
    record = Row.record_emitted
    monkeypatch.setattr(Row, "record_emitted", lambda self, _: record(self, 0))


def draws_are_not_put_back(monkeypatch):
    monkeypatch.setattr(draws.Noise, "close", lambda *_: None)


@pytest.mark.parametrize(
    ("breaks", "found"),
    [
        (None, []),
        (shown_late, ["text", "stream"]),
        (scores_are_halved, ["scores"]),
        (drafted_is_not_noted, ["bookkeeping"]),
        (draws_are_not_put_back, ["random numbers"]),
    ],
)
def test_wrong_results_are_detected(breaks, found, monkeypatch):
    settings = {"max_new_tokens": 30, "pad_token_id": 1, "do_sample": True}
    request = {"family": "llama", "lengths": [9, 5], "padding": 0, "seed": 1, "max_nodes": 9}
    request |= {"settings": settings, "verification": Accepting, "drafter": "mixed"}
    if found == ["random numbers"]:
        # Drawn ahead are those of nodes that are not reached, where no scores are kept.
        settings |= {"eos_token_id": [*range(2, 97, 3)]}
        request["drafter"] = "random"
    else:
        kept = ("return_dict_in_generate", "output_scores", "output_logits")
        settings |= dict.fromkeys(kept, True)
    if breaks is not None:
        breaks(monkeypatch)
    wrong, _ = faults(request, torch.float32)
    assert set(found) <= {*wrong}
    assert bool(found) == bool(wrong)
