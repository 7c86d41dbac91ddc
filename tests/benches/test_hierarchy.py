"""The benchmark of hierarchies: what it makes of counts and costs, and shapes that do not fit."""

import pytest

import hierarchy_ablation as ablation
import hierarchy_shapes as shapes
from models import GREEDY, prompt, tiny_model
from specds.bench.generation import curve
from specds.bench.generation.shapes import SHAPES, num_bytes
from specds.hierarchy import HierarchyConfig, HierarchyDrafter
from specds.stats import GenerationStats, LevelStats

COSTS = shapes.PassCosts(
    "three", {"tiny": 0.01, "small": 0.1}, {"tiny": 0.02, "small": 0.5}, {0: 1.0, 10: 2.0}
)


@pytest.fixture
def small_shapes(monkeypatch):
    """Three shapes that everything holds, the smallest last."""
    monkeypatch.setattr(curve, "_REPEATS", 1)
    _, settings = SHAPES["tiny"]
    for number, name in enumerate(["large", "middling"]):
        wide = {**settings, "intermediate_size": 96 * (4 - number)}
        monkeypatch.setitem(SHAPES, name, ("LlamaConfig", wide))
    return ["large", "tiny", "middling"]


def stats_of(sizes, levels):
    stats = GenerationStats()
    for size in sizes:
        stats.record_draft(size, min(size, 1))
    stats.levels = {name: LevelStats(num_forwards=number) for name, number in levels.items()}
    return stats


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ({}, 1 + 1.5 + 2),
        ({"small": 4}, 4.5 + 4 * 0.1),
        ({"tiny": 6, "small": 4}, 4.5 + 6 * 0.01 + 4 * 0.5),
        ({"retrieval": 0, "tiny": 6, "small": 4}, 4.5 + 6 * 0.02 + 4 * 0.5),
    ],
)
def test_a_request_costs_the_passes_of_its_target_and_of_its_levels(levels, expected):
    assert ablation.cost_of(stats_of([0, 5, 30], levels), COSTS) == pytest.approx(expected)


def test_a_row_tells_what_a_hierarchy_came_to():
    model = tiny_model("llama")
    small = ablation.Way(lambda: HierarchyDrafter({"small": model}, HierarchyConfig.ablation("sd")))
    settings = {"max_new_tokens": 12, **GREEDY}
    tokens, sigma, eta, speed, of_tiny, of_small, at_costs = ablation.figures(
        model, [prompt()], small, 1, settings, COSTS
    )
    # Its own tokens are all accepted: ten and one, then what is left.
    assert tokens.split()[0] == "11.00"
    assert (sigma, eta, of_tiny, of_small) == ("0.0%", "9.1%", "", "10.0")
    assert speed.count("x (") == 1
    assert at_costs.split()[0] == f"{11 / (2 + 10 * 0.1):.2f}"


def test_shapes_are_measured_from_the_smallest_on_and_make_a_hierarchy(small_shapes):
    found = shapes.measured(small_shapes, device="cpu", context=16)
    assert [costs.shape for costs in found] == ["tiny", "middling", "large"]
    for costs in found:
        assert costs.num_bytes == num_bytes(costs.shape)
        assert list(costs.target) == [0, *shapes.NODES]
        assert min([*costs.target.values(), costs.token, costs.tree]) > 0
    costs = shapes.pass_costs(found)
    assert costs.title == "large < middling < tiny"
    assert costs.of_target(0) == 1
    assert costs.token["tiny"] == pytest.approx(found[0].token / found[2].target[0])
    assert costs.of_level("retrieval", has_beneath=True) == 0
    assert shapes.table(found).row_count == 3
    assert shapes.pass_costs(found[:2]) is None


def test_a_shape_that_does_not_fit_is_left_out_with_a_line(small_shapes, monkeypatch, capsys):
    free = int(num_bytes("middling") * 1.05) + 1
    monkeypatch.setattr(shapes, "free_bytes", lambda _: free)
    ablation.main(["--shapes", *small_shapes, "--device", "cpu", "--context", "16"])
    out, err = capsys.readouterr()
    assert "large is left out: it needs 0.0 GB, cpu has 0.0" in err
    assert "middling" in out
    assert "a hierarchy needs three shapes that fit" in out


@pytest.mark.gpu
def test_real_shapes_are_timed_on_a_gpu():
    found = shapes.measured(["tiny", "llama-68m"], device="cuda", context=64)
    assert [costs.shape for costs in found] == ["tiny", "llama-68m"]
    assert found[1].num_bytes == num_bytes("llama-68m", "bfloat16")
