"""Work of the host while a device computes, with a simulated device."""

import pytest

from models import GREEDY, SAMPLING, decodes_alike, mixed_drafter, tiny_model, tree_generate
from stand_in_device import StandInDevice


@pytest.mark.parametrize("max_nodes", [0, 16, "auto"])
@pytest.mark.parametrize("mode", [GREEDY, SAMPLING], ids=["greedy", "sampled"])
def test_texts_equal_the_baseline(mode, max_nodes):
    settings = {"max_nodes": max_nodes, "verification": "packed", "mode": mode}
    for seed in range(2):
        with StandInDevice().in_use() as device:
            output = decodes_alike(tiny_model("qwen3"), seed=seed, **settings)
        num_waits = output.stats.num_drafts - 1 if mode is GREEDY else 0
        if max_nodes == "auto":  # the cost of a step includes its acceptance
            assert device.num_waits >= num_waits
        else:
            assert device.num_waits == num_waits


def test_failed_pass_on_the_device_fails_the_request(monkeypatch):
    def fail():
        raise RuntimeError("the device is lost")

    begin = StandInDevice.begin
    monkeypatch.setattr(StandInDevice, "begin", lambda device, _: begin(device, fail))
    drafter = mixed_drafter(range(60))
    with StandInDevice().in_use(), pytest.raises(RuntimeError, match="the device is lost"):
        tree_generate(tiny_model("llama"), drafter, verification="packed", **GREEDY)
