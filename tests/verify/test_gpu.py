"""The same text on a CUDA device (`make test-gpu`)."""

import gc
import random
from functools import partial
from threading import Event, Thread

import pytest
import torch

from fuzz_generate import drawn, faults
from models import (
    FAMILIES,
    GREEDY,
    build,
    decodes_alike,
    oracle_drafter,
    prompt,
    random_drafter,
    tiny_model,
    tree_generate,
)
from recorded import kept_of
from specds import generate
from specds.papers import PromptLookupDrafter
from specds.transformers.accept.draws import Noise
from specds.transformers.verify import recordings
from specds.transformers.verify.packed import PackedRunner
from specds.transformers.verify.recordings import CudaRecording, release

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_random_requests_equal_the_baseline(dtype):
    """Requests of `benches/fuzz_generate.py`, on the device."""
    try:
        for seed in range(150):
            request = {**drawn(random.Random(seed)), "device": "cuda"}
            wrong, _ = faults(request, dtype)
            if wrong and dtype == torch.float32:  # of a tie
                wrong, _ = faults(request, torch.float64)
            assert not wrong, request
    finally:
        for family in FAMILIES:  # models are cached by the tests
            tiny_model(family, dtype).to("cpu")


def test_texts_with_kernels_equal_the_baseline():
    for family in ("llama", "qwen2", "qwen3", "gemma3", "mistral"):
        config_class, settings = FAMILIES[family]
        model = build(config_class, {**settings, "head_dim": 16}).to("cuda")
        check(model)
        kept = kept_of(model)
        assert kept.has_kernels
        assert kept.forward._joined


@pytest.fixture
def model():
    return build("LlamaConfig", FAMILIES["llama"][1]).to("cuda")


check = partial(decodes_alike, drafter=partial(oracle_drafter, num_wrong=1), verification="packed")


def test_passes_are_recorded_and_replayed(model):
    check(model)
    kept = kept_of(model)
    assert kept.records
    made = [tuple(buffers.recordings.values()) for buffers in kept.passes.values()]
    assert any(made)
    check(model)
    assert [tuple(buffers.recordings.values()) for buffers in kept.passes.values()] == made


def test_resources_of_an_inference_mode_can_be_used_outside(model):
    with torch.inference_mode():
        check(model)
    check(model)


def test_replayed_logits_equal_those_of_an_unrecorded_pass(model, monkeypatch):
    sizes = {"prompt_length": 21, "max_length": 99, "max_nodes": 16}
    with torch.no_grad():
        recorded = PackedRunner(model, **sizes)
        monkeypatch.setattr(recordings, "recorder", lambda _: None)
        plain = PackedRunner(model, **sizes)
        for runner in (recorded, plain):
            runner.prefill_rows([prompt()])
        grow = random_drafter().session([0]).draft
        for _ in range(6):
            tree = grow(16)
            rows = [made.verify_rows([5], [tree])[0] for made in (recorded, plain)]
            assert torch.allclose(*rows, atol=1e-4)
        monkeypatch.undo()
        recorded.close()


def test_clearing_cublas_workspaces_leaves_recordings_intact():
    sizes = {"hidden_size": 2048, "intermediate_size": 8192, "head_dim": 128, "vocab_size": 97}
    wide = build("LlamaConfig", {**FAMILIES["llama"][1], **sizes}).to("cuda")
    check(wide)
    # torch does so when it compiles with its own CUDA graphs.
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    taken = torch.full((1 << 28,), 7, dtype=torch.uint8, device="cuda")
    check(wide)
    assert bool((taken == 7).all())
    assert kept_of(wide).records


def test_recordings_survive_the_end_of_another_model(model):
    other = build("LlamaConfig", {**FAMILIES["llama"][1], "num_hidden_layers": 3}).to("cuda")
    for made in (model, other, model):
        check(made)
    release(model)
    gc.collect()
    torch.cuda.empty_cache()
    for made in (other, model, other):
        check(made)
        assert kept_of(made).records


def test_requests_free_their_memory(model):
    used = []
    for number in range(40):
        check(model, seed=number % 4)
        if number in (19, 39):
            gc.collect()
            used.append(torch.cuda.memory_allocated())
    assert used[1] <= used[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_differs_only_at_near_ties(model, dtype):
    model.to(dtype)
    output = tree_generate(model, random_drafter(), verification="packed", **GREEDY)
    with torch.no_grad():
        logits = model(output.sequences[:, :-1], use_cache=False).logits[0, 20:].float()
    emitted = output.sequences[0, 21:, None]
    gaps = logits.amax(dim=-1) - logits.gather(1, emitted)[:, 0]
    # A few units in the last place of the largest logits.
    assert float(gaps.max()) <= 16 * torch.finfo(dtype).eps * float(logits.abs().max())


def test_shape_invariant_texts_do_not_depend_on_drafts(model):
    model.to(torch.bfloat16)
    asked = {"verification": "model", "shape_invariant": True, "max_nodes": 7, "top_k": 0}
    for seed in range(6):
        made = []
        for drafter in (random_drafter(), PromptLookupDrafter()):
            torch.manual_seed(seed)
            output = generate(model, prompt(seed=seed).to("cuda"), drafter, do_sample=True,
                              max_new_tokens=60, **asked)  # fmt: skip
            made.append(output.sequences.tolist())
        assert made[0] == made[1]


@pytest.mark.parametrize(("num_rows", "vocab_size"), [(1, 32_000), (7, 151_936)])
def test_draws_and_the_generator_are_those_of_multinomial(num_rows, vocab_size):
    probs = torch.rand(num_rows, vocab_size, device="cuda").softmax(-1)
    torch.manual_seed(11)
    expected = [torch.multinomial(probs, 1).flatten().tolist() for _ in range(6)]
    state = torch.cuda.get_rng_state()
    torch.manual_seed(11)
    noise = Noise(num_rows, vocab_size, probs.device)
    assert [(probs / noise.draw_at(at)).argmax(-1).tolist() for at in range(6)] == expected
    noise.draw_at(9)
    noise.close(6)
    assert torch.equal(torch.cuda.get_rng_state(), state)


def test_another_thread_draws_while_graphs_are_captured():
    noise, stop, failures = Noise(1, 64, torch.device("cuda")), Event(), []

    def draw(place=0):
        while not stop.is_set() and not failures:
            try:
                noise.draw_at(place := place + 1)
            except RuntimeError as failure:
                failures.append(failure)

    thread = Thread(target=draw, daemon=True)
    thread.start()
    states = torch.ones(64, 64, device="cuda")
    for _ in range(20):
        CudaRecording(lambda: [states @ states for _ in range(200)][-1], None, states.device)
    stop.set()
    thread.join()
    assert failures == []


def test_samples_are_drawn_after_a_failed_capture(monkeypatch):
    """The last test, as a failed capture may break the process."""
    states = torch.ones(4, device="cuda")
    # It fails in the capture itself, past the search for host synchronization.
    monkeypatch.setattr(recordings, "_WAITING", frozenset())
    with pytest.raises(RuntimeError):
        CudaRecording(lambda: states * states.sum().item(), None, states.device)
    assert torch.multinomial(states, 1).item() >= 0
