"""The attention kernel, compared with its definition for all trees, lengths and layouts."""

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from specds.transformers.kernels import operations as module
from specds.transformers.kernels.operations import kernel_reason
from tree_attention_cases import TOLERANCES, assert_near, launches, make_case
from triton_on_cpu import interpreted


@pytest.fixture(scope="module", autouse=True)
def _on_cpu():
    with interpreted():
        yield


SIGHTS = st.one_of(
    st.just({}),
    st.builds(lambda n: {"window": n}, st.integers(1, 40)),
    st.builds(lambda n: {"chunk": n}, st.integers(1, 40)),
)
CASES = st.builds(
    lambda sight, **of_case: make_case(**of_case, **sight),
    SIGHTS,
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.integers(0, 70), min_size=1, max_size=3),
    width=st.integers(1, 12),
    num_key_heads=st.integers(1, 2),
    group=st.integers(1, 3),
    head_dim=st.sampled_from([16, 24, 80]),
    value_dim=st.sampled_from([None, 16, 40]),
    dtype=st.sampled_from(list(TOLERANCES)),
    block_size=st.sampled_from([None, 4, 16]),
    softcap=st.sampled_from([None, 0.5, 30.0]),
    scale=st.sampled_from([None, 0.7]),
    with_sinks=st.booleans(),
)


@pytest.mark.parametrize("num_examples", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_kernel_attends_by_definition(num_examples):
    # Shrinking takes minutes, and smaller cases are not clearer.
    @settings(max_examples=num_examples, phases=[Phase.generate])
    @given(CASES)
    def check(case):
        assert_near(case.attend(), case.expected(), case.query.dtype)

    check()


@pytest.mark.parametrize(
    "case",
    [
        make_case(1, [0, 40], 70, 1, 1, 16),  # two words of ancestors, tiles of both
        make_case(2, [300], 3, 1, 2, 96, window=20),  # most slots are out of sight
        make_case(3, [5], 9, 1, 1, 16, window=2),  # the root too, for some
        make_case(5, [1100, 3, 0, 90], 2, 1, 2, 16, window=700),  # most splits are of one row
        make_case(4, [33], 2, 1, 1, 256, dtype=torch.float16, with_sinks=True),
    ],
)
def test_kernel_handles_edge_cases(case):
    assert_near(case.attend(), case.expected(), case.query.dtype)


def test_wrong_ancestor_changes_the_output():
    case = make_case(5, [20], 4, 1, 2, 16)
    right = case.attend()
    for node in range(4):
        for other in {*range(4)} - {node}:
            wrong = case.ancestors.clone()
            wrong[0, node] ^= 1 << other
            changed = (case.attend(ancestors=wrong) - right)[0].abs().amax((1, 2)) > 1e-3
            assert changed.nonzero().flatten().tolist() == [node]


def test_programs_do_not_depend_on_lengths(monkeypatch):
    """A recorded CUDA graph is therefore valid for all lengths."""
    case = make_case(6, [90, 3], 5, 2, 2, 16)
    expected = launches(case, monkeypatch)
    case.lengths = torch.tensor([0, 91])
    made = launches(case, monkeypatch)
    assert made.keys() == expected.keys()
    for name, (grid, args, constants) in made.items():
        numbers = [
            [arg for arg in given if not isinstance(arg, torch.Tensor)]
            for given in (expected[name][1], args)
        ]
        assert numbers[0] == numbers[1]
        assert (grid, constants) == (expected[name][0], expected[name][2])


def test_unsupported_kernel_gives_a_reason(monkeypatch):
    cpu = torch.device("cpu")
    assert kernel_reason(cpu, torch.float32) is None  # by the interpreter
    assert "float64" in kernel_reason(cpu, torch.float64)
    monkeypatch.setattr(module, "_is_interpreted", lambda: False)
    assert "not a CUDA device" in kernel_reason(cpu, torch.float32)
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    assert "Triton" in kernel_reason(cpu, torch.float32)
