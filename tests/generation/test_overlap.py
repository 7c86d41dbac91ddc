"""What is done while a device works, on a stand-in for one: it is used, and changes no text."""

import pytest
import torch

from models import (
    GREEDY,
    SAMPLING,
    mixed_drafter,
    plain_generate,
    prompt,
    tiny_model,
)
from specds.generation import generate
from stand_in_device import StandInDevice


def generate_on(device, model, drafter, ids, seed=0, num_tokens=32, **settings):
    torch.manual_seed(seed)
    settings = {"max_new_tokens": num_tokens, "self_check": False, **settings}
    with device.in_use():
        return generate(model, ids, drafter, **settings)


@pytest.mark.parametrize("max_nodes", [0, 16, "auto"])
@pytest.mark.parametrize("mode", [GREEDY, SAMPLING], ids=["greedy", "sampled"])
def test_texts_are_those_of_plain_decoding(mode, max_nodes):
    model = tiny_model("qwen3")
    for seed in range(2):
        device = StandInDevice(1e-3)
        expected = plain_generate(model, seed, **mode)
        ids = prompt(seed=seed)
        drafter = mixed_drafter(expected)
        output = generate_on(device, model, drafter, ids, seed, max_nodes=max_nodes, **mode)
        assert output.sequences.tolist() == [expected]
        num_waits = output.stats.num_drafts - 1 if mode is GREEDY else 0
        if max_nodes == "auto":  # what a step costs is measured with its acceptance
            assert len(device.waits_s) >= num_waits
        else:
            assert len(device.waits_s) == num_waits


def test_a_pass_that_fails_on_the_device_fails_the_request():
    model, device = tiny_model("llama"), StandInDevice(0.0)
    begin = device.begin

    def fail():
        raise RuntimeError("the device is lost")

    device.begin = lambda _: begin(fail)
    with pytest.raises(RuntimeError, match="the device is lost"):
        generate_on(device, model, mixed_drafter(list(range(60))), prompt(), max_nodes=4, **GREEDY)
