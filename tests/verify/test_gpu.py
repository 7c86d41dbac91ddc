"""The same text on a CUDA device (`make test-gpu`)."""

import gc

import pytest
import torch

from models import (
    FAMILIES,
    GREEDY,
    SAMPLING,
    build,
    mixed_drafter,
    oracle_drafter,
    prompt,
    random_drafter,
    tiny_model,
)
from specds.generation import generate
from specds.verify import RUNNERS, StaticRunner, recordings, release, static

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("mode", [GREEDY, SAMPLING], ids=["greedy", "sampling"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3", "gemma3", "gpt_neox", "gpt2"])
@pytest.mark.parametrize("verification", RUNNERS)
def test_tokens_on_a_device_are_those_of_plain_decoding_there(verification, family, dtype, mode):
    model = tiny_model(family, dtype).to("cuda")
    try:
        for seed, budget in enumerate([0, 1, 16, 64]):
            ids = prompt(seed=seed).to("cuda")
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
            assert output.sequences.device.type == "cuda"
    finally:
        model.to("cpu")  # models are cached by the tests


def kept_of(model):
    (kept,) = recordings._free[model]
    return kept


@pytest.mark.parametrize("mode", [GREEDY, SAMPLING], ids=["greedy", "sampling"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma3", "mistral"])
def test_texts_by_kernels_are_those_of_plain_decoding(family, mode):
    config_class, settings = FAMILIES[family]
    model = build(config_class, {**settings, "head_dim": 16}).to("cuda")
    ids = torch.cat([prompt(seed=seed) for seed in range(3)]).to("cuda")
    for rows in (ids, ids[:1]):
        torch.manual_seed(1)
        expected = model.generate(rows, max_new_tokens=40, **mode)
        for budget in (0, 7, 64):
            drafter = mixed_drafter(expected[0].tolist())
            torch.manual_seed(1)
            output = generate(model, rows, drafter, budget=budget, max_new_tokens=40, **mode)
            assert output.sequences.tolist() == expected.tolist()
            assert (output.stats.verification, output.stats.reason) == ("fast", "")
    kept = kept_of(model)
    assert kept.scratch is not None
    assert kept.forward.num_copied_bytes > 0


@pytest.fixture
def model():
    return build("LlamaConfig", FAMILIES["llama"][1]).to("cuda")


def check(model, seed=0, num_tokens=32):
    """Greedy text by the fast way is plain decoding's."""
    ids = prompt(seed=seed).to("cuda")
    expected = model.generate(ids, max_new_tokens=num_tokens, **GREEDY)
    drafter = oracle_drafter(expected[0].tolist(), num_wrong=1)
    settings = {"budget": 16, "max_new_tokens": num_tokens, "verification": "fast", **GREEDY}
    output = generate(model, ids, drafter, **settings)
    assert output.sequences.tolist() == expected.tolist()
    return output


def test_passes_are_recorded_and_replayed(model):
    check(model)
    kept = kept_of(model)
    assert kept.records
    made = [tuple(of_shape.recordings.values()) for of_shape in kept.passes.values()]
    assert any(made)
    check(model)
    assert [tuple(of_shape.recordings.values()) for of_shape in kept.passes.values()] == made


def test_what_an_inference_mode_leaves_can_be_used_outside_of_it(model):
    with torch.inference_mode():
        check(model)
    check(model)


def test_replayed_logits_are_those_of_a_pass_that_was_not_recorded(model, monkeypatch):
    sizes = {"prompt_length": 21, "max_length": 99, "max_nodes": 16}
    with torch.no_grad():
        recorded = StaticRunner(model, **sizes)
        monkeypatch.setattr(recordings, "recorder", lambda _: None)
        plain = StaticRunner(model, **sizes)
        for runner in (recorded, plain):
            runner.prefill_rows([prompt()])
        grow = random_drafter().session([0]).draft
        for _ in range(6):
            tree = grow(16)
            tree = tree if len(tree) else None
            rows = [made.verify_rows([5], [tree])[0] for made in (recorded, plain)]
            assert torch.allclose(*rows, atol=1e-4)
        monkeypatch.undo()
        recorded.close()


def test_workspaces_that_others_clear_are_not_those_of_recordings():
    sizes = {"hidden_size": 2048, "intermediate_size": 8192, "head_dim": 128, "vocab_size": 97}
    wide = build("LlamaConfig", {**FAMILIES["llama"][1], **sizes}).to("cuda")
    check(wide)
    # As torch does where it compiles with CUDA graphs of its own.
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    taken = torch.full((1 << 28,), 7, dtype=torch.uint8, device="cuda")
    check(wide)
    assert bool((taken == 7).all())
    assert kept_of(wide).records


def test_two_models_are_recorded_side_by_side_and_one_goes(model):
    other = build("LlamaConfig", {**FAMILIES["llama"][1], "num_hidden_layers": 3}).to("cuda")
    for made in (model, other, model):
        check(made)
    release(model)
    gc.collect()
    torch.cuda.empty_cache()
    for made in (other, model, other):
        check(made)
        assert kept_of(made).records


def test_batches_are_those_of_plain_decoding(model):
    ids = torch.cat([prompt(seed=seed) for seed in range(3)]).to("cuda")
    settings = {"max_new_tokens": 32, "pad_token_id": 1, **GREEDY}
    free = model.generate(ids, **settings)
    settings["eos_token_id"] = int(free[1, 30])
    expected = model.generate(ids, **settings)
    output = generate(model, ids, random_drafter(), budget=16, **settings)
    assert output.sequences.tolist() == expected.tolist()


@pytest.mark.parametrize("num_rows", [1, 3])
def test_samples_are_those_of_plain_decoding_whatever_is_drafted(model, num_rows):
    ids = torch.cat([prompt(seed=seed) for seed in range(num_rows)]).to("cuda")
    settings = {"max_new_tokens": 16, "do_sample": True, "temperature": 3.0, "top_p": 0.9}
    torch.manual_seed(5)
    expected = model.generate(ids, **settings).tolist()
    after = torch.cuda.get_rng_state()
    for budget in (0, 7, 20, "auto"):
        torch.manual_seed(5)
        output = generate(model, ids, random_drafter(), budget=budget, **settings)
        assert output.sequences.tolist() == expected
        assert torch.equal(torch.cuda.get_rng_state(), after)


def test_requests_leave_no_memory_behind(model):
    used = []
    for number in range(40):
        check(model, seed=number % 4)
        if number in (19, 39):
            gc.collect()
            used.append(torch.cuda.memory_allocated())
    assert used[1] <= used[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_departs_only_at_near_ties(model, dtype):
    model.to(dtype)
    ids = prompt().to("cuda")
    output = generate(model, ids, random_drafter(), budget=16, max_new_tokens=32, **GREEDY)
    with torch.no_grad():
        logits = model(output.sequences[:, :-1], use_cache=False).logits[0, 20:].float()
    emitted = output.sequences[0, 21:, None]
    gaps = logits.amax(dim=-1) - logits.gather(1, emitted)[:, 0]
    # A few units in the last place of the largest logits.
    assert float(gaps.max()) <= 16 * torch.finfo(dtype).eps * float(logits.abs().max())


def test_other_weights_dtypes_and_sizes_are_recorded_again(model, monkeypatch):
    monkeypatch.setattr(static, "_SLOTS", (64, 128))
    check(model)
    up = model.model.layers[0].mlp.up_proj
    up.weight = torch.nn.Parameter(-2 * up.weight)
    check(model)
    check(model, num_tokens=150)
    check(model)
    model.double()
    check(model)
