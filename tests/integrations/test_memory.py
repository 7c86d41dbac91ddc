"""Memory use of engine adapters."""

import ctypes
import gc
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from specds import EngineDrafter, FusedConfig, FusedDrafter
from specds.integrations import sglang, vllm_v2
from vllm_shapes import config_of, step_of

OPTIONS = {"effort": "low", "step_cost": "ignored", "min_prob": 0.0}
NUM_STEPS, STEP, K = 4, 3, 8
LIBC = ctypes.CDLL(None)


class Heap(ctypes.Structure):
    """The result of glibc's `mallinfo2`, which counts the memory of Rust, numpy and long lists."""

    _fields_ = [("numbers", ctypes.c_size_t * 10)]

    @classmethod
    def in_use(cls):
        LIBC.mallinfo2.restype = cls
        gc.collect()
        numbers = LIBC.mallinfo2().numbers
        return numbers[4] + numbers[7]  # mapped and on the heap


def bytes_held(make):
    """Return the bytes that the object returned by `make` takes."""
    before = Heap.in_use()
    kept = make()
    after = Heap.in_use()
    del kept
    return after - before


def ends(context):
    """Return the lengths of the context at each step."""
    return range(len(context) - STEP * (NUM_STEPS - 1), len(context) + 1, STEP)


def sessions(contexts):
    drafter, opened = FusedDrafter(config=FusedConfig(effort="low")), []
    for context in contexts:
        first, *others = ends(context)
        session = drafter.session(context[:first])
        for end in others:
            session.draft(K)
            session.observe(context[end - STEP : end])
        opened.append(session)
        session.draft(K)
    return opened


def engine_drafter(contexts):
    drafter = EngineDrafter(**OPTIONS)
    for end in ends(contexts[0]):
        names = [str(row) for row in range(len(contexts))]
        drafter.sync([context[:end] for context in contexts], names)
        drafter.draft_trees(K + 1)
    return drafter


def vllm_speculator(contexts):
    num_rows, size = len(contexts), len(contexts[0])
    of_gpu = lambda array: SimpleNamespace(gpu=torch.from_numpy(array))  # noqa: E731
    names = [str(row) for row in range(num_rows)]
    states = SimpleNamespace(all_token_ids=of_gpu(np.stack(contexts).view(np.int32)))
    states.req_id_to_index = names
    config = config_of(size, K, **OPTIONS)
    speculator = vllm_v2.ChainSpeculator(config, torch.device("cpu"), states)
    batch = SimpleNamespace(
        num_reqs=num_rows,
        req_ids=names,
        idx_mapping=torch.arange(num_rows),
    )
    first = next(iter(ends(contexts[0]))) - 1
    texts = zip(names, contexts, strict=True)
    prompts = {name: context[:first].tolist() for name, context in texts}
    begun = dict.fromkeys(names)
    ones = torch.ones(num_rows, dtype=torch.int32)
    for end in ends(contexts[0]):
        states.total_len = of_gpu(np.full(num_rows, end, np.int32))
        scheduled = dict.fromkeys(names, [-1] * K)
        speculator.begin_step(step_of(begun, scheduled=scheduled, prompts=prompts))
        begun = {}
        speculator.propose(batch, None, {}, None, None, ones, ones, ones[:, None])
    speculator.req_states = None  # the engine's own
    return speculator


def sglang_corpus(contexts):
    corpus = sglang.SpecdsCorpus(OPTIONS, K + 1)
    names = [str(row) for row in range(len(contexts))]
    for end in ends(contexts[0]):
        corpus.batch_get(names, [row[:end].tolist() for row in contexts], [end] * len(contexts))
    return corpus


@pytest.mark.skipif(not hasattr(LIBC, "mallinfo2"), reason="needs mallinfo2 of glibc 2.33")
@pytest.mark.parametrize("make", [engine_drafter, vllm_speculator, sglang_corpus])
def test_memory_of_an_adapter_outside_sessions_is_constant(make):
    random, num_rows = np.random.default_rng(0), 4

    def stepped(contexts):
        """Return an adapter that has a session of each context and missed no step."""
        made = make(contexts)
        stats = getattr(made, "drafter", made).stats()
        assert stats["num_opened"] == num_rows
        assert stats["num_row_steps"] == num_rows * (NUM_STEPS - 1)
        assert getattr(made, "num_failures", 0) == 0
        return made

    def outside_sessions(length):
        contexts = list(random.integers(0, 100, (num_rows, length)).astype(np.uint32))
        alone = bytes_held(lambda: sessions(contexts))
        return bytes_held(lambda: stepped(contexts)) - alone, alone

    outside_sessions(100)  # objects that are made once
    (short, _), (long, alone) = outside_sessions(2_000), outside_sessions(200_000)
    assert alone > num_rows * 200_000 * 4
    assert long - short < num_rows * 100_000  # a copy of a context takes 800,000
