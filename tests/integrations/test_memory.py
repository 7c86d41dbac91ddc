"""What adapters hold besides their sessions does not grow with the contexts."""

import ctypes
import gc
from types import SimpleNamespace

import numpy as np
import pytest

from specds import EngineDrafter, FusedConfig, FusedDrafter
from specds.integrations import llama_cpp, sglang, vllm, vllm_v2

OPTIONS = {"effort": "low", "step_cost": None, "min_prob": 0.0}
NUM_STEPS, STEP, K = 4, 3, 8
VOCAB_SIZE = 100


class Heap(ctypes.Structure):
    """What `mallinfo2` returns."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def mallinfo():
    """glibc's `mallinfo2`, which counts what Rust, numpy and Python's longer lists hold."""
    try:
        function = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        pytest.skip("needs mallinfo2 of glibc 2.33")
    function.restype = Heap
    return function


def bytes_held(make):
    """The bytes in use as long as what `make` returns is kept."""
    tell = mallinfo()
    gc.collect()
    before = tell()
    kept = make()
    gc.collect()
    after = tell()
    del kept
    return after.uordblks + after.hblkhd - before.uordblks - before.hblkhd


def ends(context):
    """How long the context is at each step."""
    return range(len(context) - STEP * (NUM_STEPS - 1), len(context) + 1, STEP)


def sessions(drafter, contexts):
    """Sessions alone."""
    opened = []
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
    for row_ends in zip(*map(ends, contexts), strict=True):
        rows = zip(contexts, row_ends, strict=True)
        drafter.sync([context[:end] for context, end in rows])
        drafter.draft_trees(K + 1)
    return drafter


def vllm_config(max_model_len):
    return SimpleNamespace(
        speculative_config=SimpleNamespace(
            num_speculative_tokens=K, enable_adaptive_verification=True
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=8),
        model_config=SimpleNamespace(
            max_model_len=max_model_len, get_vocab_size=lambda: VOCAB_SIZE, tokenizer=None
        ),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
        additional_config={"specds": OPTIONS},
    )


def vllm_proposer(contexts):
    proposer = vllm.Proposer(vllm_config(2 * len(contexts[0])))
    tokens = np.stack(contexts).view(np.int32)
    for end in ends(contexts[0]):
        lengths = np.full(len(contexts), end, np.int32)
        proposer.propose([[1]] * len(contexts), lengths, tokens)
    return proposer


def vllm_speculator(contexts):
    torch = pytest.importorskip("torch")
    num_rows, size = len(contexts), len(contexts[0])
    of_gpu = lambda array: SimpleNamespace(gpu=torch.from_numpy(array))  # noqa: E731
    tokens = of_gpu(np.stack(contexts).view(np.int32))
    states = SimpleNamespace(all_token_ids=tokens)
    speculator = vllm_v2.ChainSpeculator(vllm_config(2 * size), torch.device("cpu"), states)
    batch = SimpleNamespace(
        num_reqs=num_rows,
        req_ids=[str(row) for row in range(num_rows)],
        idx_mapping=torch.arange(num_rows),
        is_prefilling_np=np.zeros(num_rows, bool),
    )
    ones = torch.ones(num_rows, dtype=torch.int32)
    for end in ends(contexts[0]):
        states.total_len = of_gpu(np.full(num_rows, end, np.int32))
        speculator.propose(batch, None, {}, None, None, ones, ones, ones[:, None])
    speculator.req_states = None  # the engine's own
    return speculator


def llama_model(contexts):
    model = llama_cpp.DraftModel(OPTIONS, K)
    [context] = contexts
    for end in ends(context):
        model(context[:end].view(np.intc))
    return model


def sglang_corpus(contexts):
    corpus = sglang.Corpus(OPTIONS, K + 1)
    names = [str(row) for row in range(len(contexts))]
    for end in ends(contexts[0]):
        corpus.batch_get(names, [row[:end].tolist() for row in contexts], [end] * len(contexts))
    return corpus


def stepped(make, contexts):
    """An adapter that has a session of each context and missed no step."""
    made = make(contexts)
    stats = getattr(made, "drafter", made).stats()
    assert stats["num_opened"] == len(contexts)
    assert stats["num_row_steps"] == len(contexts) * (NUM_STEPS - 1)
    assert getattr(made, "num_failures", 0) == 0
    return made


@pytest.mark.parametrize(
    ("make", "num_rows"),
    [
        (engine_drafter, 4),
        (vllm_proposer, 4),
        (vllm_speculator, 4),
        (llama_model, 1),
        (sglang_corpus, 4),
    ],
)
def test_what_is_held_besides_sessions_does_not_grow_with_the_contexts(make, num_rows):
    random = np.random.default_rng(0)

    def beside_sessions(length):
        contexts = random.integers(0, VOCAB_SIZE, (num_rows, length)).astype(np.uint32)
        drafter = FusedDrafter(config=FusedConfig(effort="low", memory=False))
        alone = bytes_held(lambda: sessions(drafter, list(contexts)))
        return bytes_held(lambda: stepped(make, list(contexts))) - alone, alone

    beside_sessions(100)  # what is made once
    (short, _), (long, alone) = beside_sessions(2_000), beside_sessions(200_000)
    assert alone > num_rows * 200_000 * 4
    assert long - short < num_rows * 100_000  # a copy of a context takes 800,000
