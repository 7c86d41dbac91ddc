"""Sampling in a trainer: the baseline's samples from the same seed."""

import pytest
import torch
from transformers import GenerationConfig

from models import FAMILIES, build, prompt
from specds import accelerate


def rollouts(model, steps=2):
    """Sample groups from one prompt each, then learn, in turn, as trainers of policies do."""
    width, groups, samples = 9, (5, 9), []
    ids = torch.full((4, width), 1)
    for row in range(4):
        length = groups[row // 2]
        ids[row, width - length :] = prompt(length, seed=row // 2)[0]
    mask = (torch.arange(width) >= width - torch.tensor([5, 5, 9, 9])[:, None]).long()
    config = GenerationConfig(
        max_new_tokens=12, do_sample=True, temperature=4.0, top_k=0, pad_token_id=1, eos_token_id=7
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model.train()
    for step in range(steps):
        torch.manual_seed(step)
        with torch.no_grad():
            texts = model.generate(input_ids=ids, attention_mask=mask, generation_config=config)
        samples.append(texts.tolist())
        loss = model(texts, labels=texts).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return samples


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_trainer_gets_the_baseline_samples(family):
    def model():
        return build(*FAMILIES[family], torch.float64)

    expected, accelerated = rollouts(model()), model()
    with accelerate(accelerated, max_nodes=4):
        assert rollouts(accelerated) == expected
    # A control: training changes the samples, and rows of a group differ.
    assert expected[0] != expected[1]
    assert expected[0][0] != expected[0][1]
