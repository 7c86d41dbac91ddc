"""The law of a random program, exactly: every outcome of every draw is run once."""

from collections import defaultdict
from itertools import product
from math import prod

import numpy as np
import torch

from specds.transformers.accept import draws, on_host
from specds.transformers.hierarchy import context


class Chance:
    """Takes the place of the random generator: follows a script, then always the first outcome."""

    def __init__(self, script):
        self.script = list(script)
        self.taken = []  # (outcome, weights) of each draw so far

    def choose(self, weights):
        place = len(self.taken)
        first = next(outcome for outcome, weight in enumerate(weights) if weight > 0)
        outcome = self.script[place] if place < len(self.script) else first
        self.taken.append((outcome, weights))
        return outcome

    def draw(self, probs):
        weights = probs.flatten().double()
        return self.choose((weights / weights.sum()).tolist())

    def happens(self, probability):
        return bool(self.choose([1 - probability, probability]))

    @property
    def weight(self):
        return prod(weights[outcome] for outcome, weights in self.taken)

    def others(self):
        """Scripts that leave this run after the end of its script, each at another draw."""
        outcomes = [outcome for outcome, _ in self.taken]
        for place in range(len(self.script), len(self.taken)):
            outcome, weights = self.taken[place]
            for other in range(outcome + 1, len(weights)):
                if weights[other] > 0:
                    yield [*outcomes[:place], other]


def law_of(program, monkeypatch):
    """The probability of each result of `program()`, and how many runs there were."""
    law, scripts, num_runs = defaultdict(float), [[]], 0
    while scripts:
        chance = Chance(scripts.pop())
        for module in (draws, on_host, context):
            monkeypatch.setattr(module, "draw", chance.draw)
        monkeypatch.setattr(draws, "happens", chance.happens)
        result = program()
        law[result] += chance.weight
        scripts += chance.others()
        num_runs += 1
    return dict(law), num_runs


def distance(law, other):
    """Total variation of two laws."""
    keys = law.keys() | other.keys()
    return sum(abs(law.get(key, 0.0) - other.get(key, 0.0)) for key in keys) / 2


class ToyModel:
    """A level's model, or the target: the next token depends on the last one and on how many."""

    def __init__(self, num_tokens, seed):
        rng = np.random.default_rng(seed)
        table = rng.dirichlet([0.7] * num_tokens, size=(3, num_tokens))
        self.table = torch.tensor(table, dtype=torch.float32)
        self.num_tokens = num_tokens

    def probs(self, tokens):
        return self.table[len(tokens) % 3, tokens[-1]]

    def run(self, tokens, tree):
        texts = [list(tokens)]
        for parent, token in zip(tree.parents.tolist(), tree.token_ids.tolist(), strict=True):
            texts.append([*texts[parent + 1], token])
        return torch.stack([self.probs(text) for text in texts]).log()

    def commit(self, path):
        """Do nothing: the model has no cache."""

    def law(self, start, length, temperature=1.0):
        """The law of the `length` tokens that follow the tokens `start`."""
        law, sharpened = {}, self.table ** (1 / temperature)
        sharpened /= sharpened.sum(-1, keepdim=True)
        for tokens in product(range(self.num_tokens), repeat=length):
            whole = [*start, *tokens]
            places = range(len(start), len(whole))
            law[tokens] = prod(float(sharpened[n % 3, whole[n - 1], whole[n]]) for n in places)
        return law
