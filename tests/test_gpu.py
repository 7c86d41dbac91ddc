"""The same text on a CUDA device (`make test-gpu`)."""

import pytest
import torch

from models import mixed_drafter, prompt, tiny_model
from specds.generation import generate
from specds.verify import RUNNERS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize(
    "mode",
    [{"do_sample": False}, {"do_sample": True, "temperature": 4.0, "top_k": 0}],
    ids=["greedy", "sampling"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3", "gemma3", "gpt_neox", "gpt2"])
@pytest.mark.parametrize("verification", RUNNERS)
def test_tokens_on_a_device_are_those_of_plain_decoding_there(verification, family, dtype, mode):
    check_on("cuda", verification, family, dtype, mode)


def check_on(device, verification, family, dtype, mode):
    model = tiny_model(family, dtype).to(device)
    try:
        for seed, budget in enumerate([0, 1, 16, 64]):
            ids = prompt(seed=seed).to(device)
            torch.manual_seed(seed)
            expected = model.generate(ids, max_new_tokens=32, **mode)[0].tolist()
            torch.manual_seed(seed)
            output = generate(
                model,
                ids,
                mixed_drafter(expected),
                budget=budget,
                verification=verification,
                max_new_tokens=32,
                profile=True,
                **mode,
            )
            assert output.sequences.tolist() == [expected]
            assert output.sequences.device.type == device
    finally:
        model.to("cpu")  # models are cached by the tests
