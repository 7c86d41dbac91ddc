"""ADED in plain Python, line by line as its paper has it: slow, and meant to be obviously right.

What the paper leaves open is decided as `rust/core/papers/aded/mcts.rs` says.
"""

import math
from collections import Counter, defaultdict

import numpy as np


class Random:
    """Splitmix64."""

    def __init__(self, seed):
        self.state = seed

    def share(self):
        mask = (1 << 64) - 1
        self.state = (self.state + 0x9E3779B97F4A7C15) & mask
        number = self.state
        number = ((number ^ number >> 30) * 0xBF58476D1CE4E5B9) & mask
        number = ((number ^ number >> 27) * 0x94D049BB133111EB) & mask
        return ((number ^ number >> 31) >> 11) / (1 << 53)


class TrigramMatrix:
    """Words by prefix, as lists of `[token, probability]`: the likeliest first, then by token."""

    def __init__(self, documents, separator, vocab_size, order, max_words):
        self.separator, self.order, self.max_words = separator, order, max_words
        counts = defaultdict(Counter)
        for document in filter(None, documents):
            text = [*document, separator] if separator < vocab_size else document
            for *prefix, word in windows(text, order):
                if separator not in prefix:
                    counts[tuple(prefix)][word] += 1
        self.rows = {}
        for prefix, words in counts.items():
            total = words.total()
            row = [[word, np.float32(count / total)] for word, count in words.items()]  # Eq. 1
            self.rows[prefix] = in_order(row)[:max_words]

    def words(self, prefix):
        return self.rows.get(tuple(prefix), [])[: self.max_words]

    def adjust(self, tokens, num_new, increment, max_prob):
        """Algorithm 2, for the tri-grams that end in one of the last `num_new` tokens."""
        increment, max_prob = np.float32(increment), np.float32(max_prob)
        start = max(0, len(tokens) - num_new - self.order + 1)
        for *prefix, word in windows(tokens[start:], self.order):
            if self.separator in prefix:
                continue
            row = self.rows.setdefault(tuple(prefix), [])
            known = [entry for entry in row if entry[0] == word]
            if known:
                known[0][1] = min(known[0][1] + increment, max_prob)
            else:
                row.append([word, increment])
            self.rows[tuple(prefix)] = in_order(row)


def windows(tokens, length):
    return [tokens[start : start + length] for start in range(len(tokens) - length + 1)]


def in_order(row):
    return sorted(row, key=lambda entry: (-entry[1], entry[0]))


class Node:
    def __init__(self, parent, prefix, token, prob, matrix):
        self.parent, self.prefix, self.token, self.prob = parent, prefix, token, float(prob)
        self.untried_words = matrix.words(prefix)
        self.children, self.visits, self.score, self.found = [], 0, 0.0, None

    def select_child(self, c1, c2):
        visits = sum(child.visits for child in self.children)
        e = float(np.float32(c1 + math.log((visits + c2 + 1) / c2)))  # Eq. 3

        def puct(child):  # Eq. 2
            q = child.score / child.visits if child.visits else 0.0
            return q + e * child.prob * math.sqrt(visits) / (1 + child.visits)

        return max(self.children, key=lambda child: (puct(child), child.prob, -child.token))


def run_mcts(matrix, prefix, searches, depth, candidates, c1, c2, seed):
    """Algorithm 1: `[(token, parent, probability)]` of the best sentences."""
    random, found = Random(seed), 0
    root = Node(None, tuple(prefix), prefix[-1], 1.0, matrix)
    for _ in range(searches):
        node, state, end = root, [root], False
        # Selection
        while node.untried_words and node.children and not end:
            node = node.select_child(c1, c2)
            state.append(node)
            end = len(state) == depth + 1
        # Expansion
        if node.untried_words and not end:
            for word, prob in reversed(node.untried_words):
                following = (*node.prefix[1:], word)
                node.children.append(Node(node, following, word, prob, matrix))
            node = node.children[-1]
            state.append(node)
        # Simulation
        score = 1.0
        for visited in state[1:]:
            score += visited.prob
        last = node.prefix
        for _ in range(depth + 1 - len(state)):
            words = matrix.words(last)
            if not words:
                break
            word, prob = pick(words, random)
            score += float(prob)
            last = (*last[1:], word)
        # Backpropagation
        for visited in state:
            if visited.visits == 0:
                visited.found = found = found + 1
            visited.visits += 1
            visited.score += score
    return extract(root, candidates)


def pick(words, random):
    target, total = random.share() * sum(float(prob) for _, prob in words), 0.0
    for picked in words:
        total += float(picked[1])
        if target < total:
            break
    return picked


def extract(root, candidates):
    def visited_below(node):
        children = [child for child in node.children if child.visits]
        return [node, *(each for child in children for each in visited_below(child))]

    def rank(node):
        return -node.score, node.found

    nodes = [node for node in visited_below(root) if node is not root]
    leaves = [node for node in nodes if not any(child.visits for child in node.children)]
    kept = set()
    for leaf in sorted(leaves, key=rank)[:candidates]:
        while leaf is not root:
            kept.add(leaf)
            leaf = leaf.parent
    kept = sorted(kept, key=rank)
    places = {root: -1} | {node: place for place, node in enumerate(kept)}
    return [(n.token, places[n.parent], np.float32(n.score / root.score)) for n in kept]


def run_greedy(matrix, prefix, depth=4):
    nodes, prefix, path_prob = [], tuple(prefix), np.float32(1)
    for parent in range(-1, depth - 1):
        if not matrix.words(prefix):
            break
        word, prob = matrix.words(prefix)[0]
        path_prob *= prob
        nodes.append((word, parent, path_prob))
        prefix = (*prefix[1:], word)
    return nodes


class Session:
    """One request: `observe` learns, `draft` searches."""

    def __init__(self, matrix, search="mcts", learning=None, **arguments):
        self.matrix, self.search, self.arguments = matrix, search, arguments
        self.learning, self.tokens = learning, []

    def observe(self, tokens):
        self.tokens += tokens
        if self.learning:
            self.matrix.adjust(self.tokens, len(tokens), **self.learning)

    def draft(self):
        prefix = self.tokens[len(self.tokens) - self.matrix.order + 1 :]
        if len(self.tokens) < self.matrix.order - 1 or self.matrix.separator in prefix:
            return []
        if self.search == "greedy":
            return run_greedy(self.matrix, prefix, self.arguments["depth"])
        return run_mcts(self.matrix, prefix, **self.arguments)
