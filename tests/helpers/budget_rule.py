"""Reference implementation of the node budget in plain Python, without caches."""

import math


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
        self.costs = costs
        # Mean and variance of a bias of log odds, of the drafter and of each row.
        self.drafter = [math.log(reliability), 1.0]
        self.rows = [[0.0, 0.5] for _ in range(num_rows)]
        self.sure = [2.0, 8.0]  # rejections of sure nodes, and these nodes
        self.sums = [(0.0, 0.0)] * num_rows  # expected tokens, and the share of the step's cost

    def odds(self, row):
        return math.exp(self.drafter[0] + self.rows[row][0])

    def most(self, num_sure=0):
        return 1 - self.sure[0] / (self.sure[1] + num_sure)

    def gains(self, row, tree):
        odds, gains, nums_sure = self.odds(row), [], []
        for parent, promise in zip(tree.parents, probs(tree), strict=True):
            above = 1.0 if parent < 0 else probs(tree)[parent]
            any_child = min(sum(probs(tree)[of] for of in children(tree, parent)) / above, 1.0)
            num_sure = 0 if parent < 0 else nums_sure[parent]
            nums_sure.append(num_sure + (any_child > self.most(num_sure)))
            expected = scaled(min(any_child, self.most(num_sure)), odds)
            one = min(promise / above, 1.0) * expected / any_child
            gain = one * (1.0 if parent < 0 else gains[parent])
            gains.append(min(gain, scaled(promise, max(odds, 1.0))))
        return gains

    def sizes(self, trees):
        gains = [self.gains(row, tree) for row, tree in enumerate(trees)]
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
        if any(map(len, trees)):
            self.drafter[1] = 0.99 * self.drafter[1] + 0.01 * 1.0
            self.sure = [
                0.99 * of + 0.01 * first for of, first in zip(self.sure, (2, 8), strict=True)
            ]
        for row, (tree, size, tokens) in enumerate(zip(trees, sizes, emitted, strict=True)):
            if not len(tree):
                continue
            self.rows[row][1] = 0.99 * self.rows[row][1] + 0.01 * 0.5
            parent = -1
            for token in tokens:
                offered = children(tree, parent)
                if not offered:
                    break
                above = 1.0 if parent < 0 else probs(tree)[parent]
                promise = min(sum(probs(tree)[of] for of in offered) / above, 1.0)
                right = [of for of in offered if tree.token_ids[of] == token]
                self.note(row, promise, bool(right))
                if not right or right[0] >= size:
                    break
                parent = right[0]

    def note(self, row, promise, came):
        """Update both biases, as a filter of log odds does, and the risk of sure nodes."""
        most = self.most()
        expected = scaled(min(promise, most), self.odds(row))
        if promise > most:
            self.sure = [self.sure[0] + (not came), self.sure[1] + 1]
        weight = expected * (1 - expected)
        total = 1 + weight * (self.drafter[1] + self.rows[row][1])
        for bias in (self.drafter, self.rows[row]):
            bias[0] += bias[1] / total * (came - expected)
            bias[1] -= bias[1] ** 2 * weight / total


def scaled(prob, odds):
    """A probability whose odds are multiplied."""
    return odds * prob / (odds * prob + 1 - prob)


def children(tree, parent):
    return [node for node, of in enumerate(tree.parents) if of == parent]


def probs(tree):
    """The probabilities of a tree; 1 for each node if it has none."""
    return tree.probs.tolist() if any(tree.probs) else [1.0] * len(tree)
