"""What is done while a device works, on a stand-in for one: it is used, and changes no text."""

import pytest
import torch

from models import (
    GREEDY,
    SAMPLING,
    mixed_drafter,
    oracle_drafter,
    plain_generate,
    prompt,
    tiny_model,
)
from specds.budget.experience import Experience
from specds.decoding import Decoding
from specds.generation import generate
from stand_in_device import StandInDevice


def generate_on(device, model, drafter, ids, seed=0, num_tokens=32, **settings):
    torch.manual_seed(seed)
    settings = {"max_new_tokens": num_tokens, "self_check": False, **settings}
    with device.in_use():
        return generate(model, ids, drafter, **settings)


@pytest.mark.parametrize("budget", [0, 16, "auto"])
@pytest.mark.parametrize("mode", [GREEDY, SAMPLING], ids=["greedy", "sampled"])
def test_texts_are_those_of_plain_decoding(mode, budget):
    model = tiny_model("qwen3")
    for seed in range(2):
        device = StandInDevice(1e-3)
        expected = plain_generate(model, seed, **mode)
        ids = prompt(seed=seed)
        drafter = mixed_drafter(expected)
        output = generate_on(device, model, drafter, ids, seed, budget=budget, **mode)
        assert output.sequences.tolist() == [expected]
        num_waits = output.stats.num_drafts - 1 if mode is GREEDY else 0
        assert len(device.waits_s) == num_waits


@pytest.mark.parametrize("overlaps", [True, False], ids=["as it is", "control"])
def test_a_budget_learns_while_the_device_works_and_drafts_while_it_waits(monkeypatch, overlaps):
    model, device = tiny_model("llama"), StandInDevice(20e-3)
    expected = plain_generate(model, num_tokens=99, **GREEDY)
    drafter = oracle_drafter(expected, num_wrong=1)
    while_busy = {"learn": [], "draft": []}
    learn, grow = Experience.learn, drafter.grow

    def noted_learn(*arguments):
        while_busy["learn"].append(device.is_busy)
        learn(*arguments)

    def noted_grow(*arguments):
        while_busy["draft"].append(device.is_busy)
        return grow(*arguments)

    monkeypatch.setattr(Experience, "learn", noted_learn)
    drafter.grow = noted_grow
    if not overlaps:
        draft = Decoding._draft

        def after_learning(self, rows):
            self.budget.learn()
            return draft(self, rows)

        monkeypatch.setattr(Decoding, "_draft", after_learning)
    ids = prompt()
    output = generate_on(device, model, drafter, ids, num_tokens=99, budget="auto", **GREEDY)
    assert output.sequences.tolist() == [expected]
    assert len(while_busy["draft"]) > 3
    assert not any(while_busy["draft"])
    # The last step may have none after it, and a busy machine may keep the host from some.
    learned = while_busy["learn"][:-1]
    assert len(learned) > 2
    assert sum(learned) > len(learned) / 2 if overlaps else not any(learned)


def test_a_pass_that_fails_on_the_device_fails_the_request():
    model, device = tiny_model("llama"), StandInDevice(0.0)
    begin = device.begin

    def fail():
        raise RuntimeError("the device is lost")

    device.begin = lambda _: begin(fail)
    with pytest.raises(RuntimeError, match="the device is lost"):
        generate_on(device, model, mixed_drafter(list(range(60))), prompt(), budget=4, **GREEDY)
