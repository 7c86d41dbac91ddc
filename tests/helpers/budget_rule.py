"""Reference implementation of the node budget in plain Python, without caches."""

from reference import paths


def best_size(gains, costs, rate=None):
    """The number of nodes of each row worth most; 0 where 3 % of a token are not promised.

    Args:
        rate: The tokens of a row that a unit of time is worth; by default those without drafts.
    """
    rate = rate or 1 / costs[0]

    def value(size):
        tokens = 1 + sum(sum(map(float, row[:size])) for row in gains) / len(gains)
        return tokens - rate * costs[size]

    best = max(range(1 + max(map(len, gains))), key=value)
    return best if value(best) > value(0) + 0.03 else 0


class Rule:
    """Statistics of a drafter in some rows, and the sizes of its drafts."""

    def __init__(self, num_rows, costs, reliability):
        self.costs, self.first = costs, reliability
        self.outcomes = []  # steps of (row, depth, promise, whether it came)
        self.rows = [[] for _ in range(num_rows)]  # of steps: (scaled promise, came)
        self.sums = [(0.0, 0.0)] * num_rows  # expected tokens, and the share of the step's cost

    def reliability(self):
        """By depth: the share of what was promised that came, older steps counting less."""
        factor, factors = self.first, []
        for depth in range(1, 17):
            promised, came = (2.0, 2.0 * factor) if depth > 1 else (0.0, 0.0)
            age = len(self.outcomes)
            if depth == 1:
                promised, came = 2.0 * 0.98**age, 2.0 * self.first * 0.98**age
            for step, nodes in enumerate(self.outcomes):
                for _, of_depth, promise, is_right in nodes:
                    if min(of_depth, 16) == depth:
                        promised += promise * 0.98 ** (age - 1 - step)
                        came += is_right * 0.98 ** (age - 1 - step)
            factor = min(came / promised, 2.0)
            factors.append(factor)
        return factors

    def row_reliability(self, row):
        promised = came = 4.0
        for age, (of_step, right) in enumerate(reversed(self.rows[row])):
            promised += of_step * 0.98**age
            came += right * 0.98**age
        return min(came / promised, 2.0)

    def sizes(self, trees):
        reliability = self.reliability()
        gains = []
        for row, tree in enumerate(trees):
            factor, nodes = self.row_reliability(row), zip(probs(tree), tree.depths(), strict=True)
            depths = [min(depth, 16) - 1 for depth in tree.depths()]
            of_depth = [min(factor * reliability[depth], 2.0) for depth in depths]
            gains.append([min(p * f, 1.0) for (p, _), f in zip(nodes, of_depth, strict=True)])
        num_rows, baseline = len(self.rows), self.costs[0] / len(self.rows)
        tokens, cost = (sum(of_row) for of_row in zip(*self.sums, strict=True))
        rate = max((tokens + 0.5) / (cost + 0.5 * baseline), 1 / baseline) / num_rows
        size = best_size(gains, self.costs, rate)
        share = self.costs[size] / num_rows
        self.sums = [
            (0.95 * tokens + 1 + sum(of_row[:size]), 0.95 * cost + share)
            for (tokens, cost), of_row in zip(self.sums, gains, strict=True)
        ]
        return [min(size, len(tree)) for tree in trees]

    def learn(self, trees, sizes, emitted):
        reliability, step = self.reliability(), []
        for row, (tree, size, tokens) in enumerate(zip(trees, sizes, emitted, strict=True)):
            if not len(tree):
                continue
            promised = right = 0.0
            for node, (path, promise) in enumerate(zip(paths(tree), probs(tree), strict=True)):
                if tree.parents[node] < size:
                    came = [*path] == tokens[: len(path)]
                    step.append((row, len(path), promise, came))
                    promised += promise * reliability[min(len(path), 16) - 1]
                    right += came
            self.rows[row].append((promised, right))
        if step:
            self.outcomes.append(step)


def probs(tree):
    """The probabilities of a tree; 1 for each node if it has none."""
    return tree.probs.tolist() if any(tree.probs) else [1.0] * len(tree)
