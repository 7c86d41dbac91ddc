"""Trainers sample from the model that they train: by specds the same samples from the same seed."""

from contextlib import nullcontext

import pytest
import torch
from transformers import GenerationConfig

from models import FAMILIES, build, prompt
from specds import FusedDrafter, accelerate
from specds.loading import load_model


def rollouts(model, steps=2):
    """What a trainer of policies does: sample groups from one prompt each, then learn, in turn."""
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
def test_a_trainer_samples_the_same(family):
    def model():
        return build(*FAMILIES[family], torch.float64)

    expected, accelerated = rollouts(model()), model()
    with accelerate(accelerated, budget=4):
        assert rollouts(accelerated) == expected
    # A control: what is learned changes the samples, and rows of a group differ.
    assert expected[0] != expected[1]
    assert expected[0][0] != expected[0][1]


def trl_completions(folder, drafter=None):
    """The completions of GRPO on the demo's smallest model, and the weights that come of it."""
    datasets, trl = pytest.importorskip("datasets"), pytest.importorskip("trl")
    model, tokenizer = load_model("demo-tiny", device="cpu")
    tokenizer.pad_token, tokenizer.padding_side = tokenizer.eos_token, "left"
    seen = []

    def reward(completions, **_):
        seen.append([*completions])
        return [float(len(set(text))) for text in completions]

    config = trl.GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=12,
        max_steps=2,
        learning_rate=1e-3,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
    )
    prompts = datasets.Dataset.from_dict({"prompt": ["def add(a, b):\n", "import os\n"] * 4})
    with nullcontext() if drafter is None else accelerate(model, drafter, budget=6):
        torch.manual_seed(0)
        trl.GRPOTrainer(
            model=model,
            reward_funcs=reward,
            args=config,
            train_dataset=prompts,
            processing_class=tokenizer,
        ).train()
    return seen, torch.cat([weights.flatten() for weights in model.parameters()])


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_trl_trains_the_same(tmp_path):
    expected, weights = trl_completions(tmp_path)
    drafter = FusedDrafter()
    completions, ours = trl_completions(tmp_path, drafter)
    assert completions == expected
    assert torch.allclose(ours, weights, atol=1e-5)
    assert drafter.stats()
