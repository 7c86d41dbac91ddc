"""The attention kernel as Triton compiles it: for absent devices, and on a present one."""

import pytest
import torch

from specds.transformers.kernels import operations
from tree_attention_cases import TOLERANCES, assert_near, launches, make_case

triton = pytest.importorskip("triton")

CAPPED = {"softcap": 30.0, "with_sinks": True}
TYPES = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int64: "*i64"}
TYPES |= {torch.int32: "*i32", int: "i32", float: "fp32"}


def compiled(case, capability, monkeypatch):
    """Return the compiled programs of a call on a device of this compute capability."""
    from specds.transformers.kernels import programs

    kernels = {name: getattr(programs, name) for name in ("attend", "merge")}
    calls = launches(case, monkeypatch).items()
    return {name: compiled_by(kernels[name], *of[1:], capability) for name, of in calls}


def compiled_by(kernel, args, constants, capability):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = {"num_warps", "num_stages", "enable_fp_fusion"} & constants.keys()
    options = {name: constants.pop(name) for name in names}
    named = dict(zip(kernel.arg_names, args, strict=False))
    signature = {name: TYPES[getattr(arg, "dtype", type(arg))] for name, arg in named.items()}
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, arg in enumerate(args)
        if isinstance(arg, torch.Tensor) or (isinstance(arg, int) and arg % 16 == 0)
    }
    source = ASTSource(
        kernel, signature | dict.fromkeys(constants, "constexpr"), constants, aligned
    )
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capability", "multiplies", "memory"), [(80, "mma.sync", 99), (90, "wgmma", 227)]
)
@pytest.mark.parametrize(
    ("head_dim", "group", "options"),
    [
        (128, 1, {}),
        (128, 4, {}),
        (96, 4, {"window": 4096, **CAPPED}),
        (256, 4, {"block_size": 16}),
        (256, 1, {}),
    ],
)
def test_kernel_compiles_for_absent_devices(
    capability, multiplies, memory, head_dim, group, options, monkeypatch
):
    """Programs must fit in shared memory: at least 99 KB on 8.x, 227 KB on 9.0.

    Two of them load two tiles ahead on 9.0, so both must fit.
    """
    monkeypatch.setattr(operations, "_processors", lambda _: (4, memory << 10))
    case = make_case(1, [900], 64, 1, group, head_dim, dtype=torch.bfloat16, **options)
    made = compiled(case, capability, monkeypatch)
    assert made.keys() == {"attend", "merge"}
    kernel = made["attend"]
    assert multiplies in kernel.asm["ptx"]
    assert "cp.async" in kernel.asm["ptx"]  # what comes next is loaded meanwhile
    has_two = memory == 227 and group > 1 and head_dim <= 128
    assert (1 + has_two) * kernel.metadata.shared <= memory << 10


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize(
    "options", [{}, {"window": 300, **CAPPED}, {"chunk": 512, "block_size": 16}]
)
def test_kernel_attends_by_definition(head_dim, dtype, options):
    rows = ([3000, 0, 517], 64, 2, 4), ([9000], 1, 1, 1), ([4097, 31, 32, 33, 1, 0], 8, 4, 7)
    for lengths, width, heads, group in rows:
        shape = lengths, width, heads, group, head_dim
        case = make_case(9, *shape, dtype=dtype, device="cuda", **options)
        output = case.attend()
        assert_near(output, case.expected(), dtype)
        assert all(torch.equal(case.attend(), output) for _ in range(9))


@pytest.mark.gpu
def test_recording_is_valid_for_all_lengths():
    case = make_case(10, [4000], 64, 8, 4, 128, dtype=torch.bfloat16, device="cuda")
    case.keys, case.values = case.keys.nan_to_num(), case.values.nan_to_num()
    case.attend()
    graph = torch.cuda.CUDAGraph()
    ancestors = case.ancestors
    with torch.cuda.graph(graph):
        output = case.attend(ancestors=ancestors)
    depths = case.positions - case.lengths[:, None]
    for length in (0, 1, 100, 3999) * 3:
        case.lengths.fill_(length)
        case.positions.copy_(length + depths)
        graph.replay()
        assert_near(output, case.expected(), torch.bfloat16)
