"""CUDA graphs that a real vLLM chooses for the sizes of drafts, by its own code: `make test-vllm`.

Neither capturing nor replaying is tested, only the choice, which needs no GPU.
"""

import itertools
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm", exc_type=ImportError)

from vllm.config.compilation import CUDAGraphMode
from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager
from vllm.v1.worker.utils import get_uniform_decode_token_count

from specds.integrations.vllm_plugin import draft_schedule
from specds.integrations.vllm_v2 import widen_candidates

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]

K, MOST = 8, 512
SIZES = [1, 2, 4, *range(8, 256, 8), *range(256, MOST + 1, 16)]
"""The sizes that vLLM captures by default."""
ROWS = (1, 4, 32, 128)


class Dispatcher(CudaGraphManager):
    """The dispatcher of a runner of 256 requests, whose graphs count as captured."""

    def __init__(self, k=K, *, is_adaptive=False, schedule=None, is_widened=False):
        speculative = SimpleNamespace(
            uses_dynamic_speculative_decoding=lambda: schedule is not None,
            num_speculative_tokens_per_batch_size=schedule,
        )
        self.vllm_config = SimpleNamespace(
            speculative_config=speculative if k else None,
            num_speculative_tokens=k,
            cache_config=SimpleNamespace(use_kda_recoverssm=False),
            parallel_config=SimpleNamespace(data_parallel_size=1),
        )
        self.compilation_config = SimpleNamespace(
            cudagraph_capture_sizes=SIZES, max_cudagraph_capture_size=MOST
        )
        self.max_num_reqs, self.decode_query_len, self.varlen_decode = 256, k + 1, is_adaptive
        self.cudagraph_mode = CUDAGraphMode.FULL_AND_PIECEWISE
        self.ubatch_runner, self.lora_capture_cases = None, [0]
        self._lora_dispatch_map, self._max_lora_case = {}, 0
        self._candidates, self._capture_descs, self._graphs_captured = {}, {}, True
        self._init_candidates()
        if is_widened:
            widen_candidates(self)

    def is_full(self, drafts):
        """Return whether a step of rows with these numbers of drafted tokens has a FULL graph."""
        numbers = [size + 1 for size in drafts]
        about = len(numbers), sum(numbers), max(numbers)
        uniform = get_uniform_decode_token_count(*about, decode_graph_eligible=True)
        found = self.dispatch(*about[:2], uniform, 0, max_query_len=about[2])
        return found.cg_mode == CUDAGraphMode.FULL


@pytest.mark.parametrize("rows", ROWS)
def test_steps_with_drafts_have_full_graphs_where_plain_vllm_has(rows):
    assert Dispatcher(0).is_full([0] * rows)
    adaptive = Dispatcher(is_adaptive=True)
    uniform = Dispatcher(schedule=draft_schedule(K, 256), is_widened=True)
    assert adaptive.is_full([0] * rows)
    assert uniform.is_full([0] * rows)
    pattern = itertools.cycle([K, 0, 3, 1, 0, 0, 2])
    assert adaptive.is_full([next(pattern) for _ in range(rows)])
    assert adaptive.is_full([2, *[0] * (rows - 1)])
    for size in (2, 4, K):
        fits = rows * (size + 1) <= MOST
        assert uniform.is_full([size] * rows) == adaptive.is_full([size] * rows) == fits


def test_one_size_has_full_graphs_for_any_number_of_rows():
    uniform = Dispatcher(schedule=draft_schedule(K, 256), is_widened=True)
    as_vllm = Dispatcher(schedule=draft_schedule(K, 256))
    steps = [(rows, size) for rows in range(1, 257) for size in (0, 2, 4, K)]
    fitting = [(rows, size) for rows, size in steps if rows * (size + 1) <= SIZES[-3]]
    assert all(uniform.is_full([size] * rows) for rows, size in fitting)
    num_full = sum(as_vllm.is_full([size] * rows) for rows, size in fitting)
    print(f"\nFULL of {len(fitting)} steps: {num_full} as vLLM chooses graphs")
    assert num_full < 0.8 * len(fitting)


@pytest.mark.parametrize("rows", ROWS)
def test_steps_of_other_sizes_have_none(rows):
    """Without adaptive verification and a schedule, as vLLM is configured for its n-grams."""
    fixed, uniform = Dispatcher(), Dispatcher(schedule=draft_schedule(K, 256))
    assert not fixed.is_full([0] * rows)
    assert not fixed.is_full([3, *[0] * (rows - 1)])
    assert not uniform.is_full([3] * rows)
    assert rows == 1 or not uniform.is_full([K, *[0] * (rows - 1)])


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8, 15])
@pytest.mark.parametrize("most", [8, 64, 256])
def test_a_schedule_is_one_of_vllm(k, most):
    from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

    found = build_dynamic_sd_schedule_lookup(draft_schedule(k, most), most, k)
    assert set(found[1:]) == {0, k // 4, k // 2, k}
    assert found[most] == found[most // 2] == k
