"""The benchmark of hierarchies: what it makes of counts and costs."""

from functools import partial

import hierarchy_ablation as ablation
from models import GREEDY, prompt, tiny_model
from specds.bench.generation.measure import (
    Plan,
    Target,
    Way,
    baseline_way,
    batches_of,
    measure,
    own_calls,
)
from specds.bench.generation.report import rows_of
from specds.hierarchy import HierarchyConfig, HierarchyDrafter


def test_a_row_tells_what_a_hierarchy_came_to():
    target = Target(tiny_model("llama"))
    make = partial(HierarchyDrafter, {"small": target.model}, HierarchyConfig.ablation("sd"))
    ways = [
        baseline_way("generate", target),
        Way("sd", partial(own_calls, target, make, 32), is_ours=True),
    ]
    calls, greedy = {1: batches_of(prompt()[0:1].tolist(), 1)}, GREEDY | {"max_new_tokens": 12}
    cells = measure(Plan(target, ways, {"greedy": greedy}, calls, 1, 0, True))
    tokens, sigma, eta, speed, of_small, of_tiny, at_costs = ablation.figures(
        cells[1], rows_of(cells)[1]
    )
    # Its own tokens are all accepted: ten and one, then what is left.
    assert tokens.split()[0] == "11.00"
    assert (sigma, eta, of_tiny, of_small) == ("0.0%", "9.1%", "", "10.0")
    assert speed.count("x (") == 1
    assert at_costs.split()[0] == f"{11 / (1 + 10 * 0.19):.2f}"
