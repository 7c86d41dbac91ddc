"""Models whose weights lie on several devices; needs `accelerate`."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForCausalLM

from models import FAMILIES, build, decodes_alike, oracle_drafter
from specds.verify import TreeCache


def test_model_on_several_devices_uses_the_model_backend(tmp_path):
    pytest.importorskip("accelerate")
    build(*FAMILIES["llama"]).save_pretrained(tmp_path)
    parts = ("model.embed_tokens", "model.layers.0", "model.norm", "model.rotary_emb", "lm_head")
    places = {**dict.fromkeys(parts, "cpu"), "model.layers.1": "disk"}
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path, device_map=places, offload_folder=tmp_path / "offload", dtype=torch.float32
    )
    assert "forward" in vars(model.model.layers[1])
    output = decodes_alike(model, oracle_drafter, verification="model")
    assert output.stats.num_accepted_tokens > 20


@pytest.mark.skipif(torch.__version__.startswith("2.7."), reason="it asks for a driver")
def test_states_are_on_the_devices_of_their_layers():
    with FakeTensorMode(), torch.no_grad():  # of devices that are not here
        cache = TreeCache(8)
        for width in (3, 2, 40):
            start = cache.length
            cache.reserve(start + width)
            end = start + width if start else 0
            cache.place(torch.arange(start, start + width, device="cuda:0"), end)
            for layer in range(2):
                states = torch.zeros(1, 2, width, 4, device=f"cuda:{layer}")
                for seen in cache.update(states, states, layer):
                    assert seen.shape == (1, 2, start + width, 4)
                    assert seen.device == states.device
            cache.settle()
            cache.commit([[0, *range(2, width)]])  # which moves
