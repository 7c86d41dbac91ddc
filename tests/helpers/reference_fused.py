"""Reference implementation of the fused drafter with dictionaries and double precision.

It computes the exact draft for texts that are too short for sampling. Its names are those of
`rust/core/fused`; `reference_sources` has the sources.
"""

from collections import Counter, defaultdict
from math import exp, floor, log, log2
from typing import NamedTuple

from reference_sources import (
    VOCAB_SIZE,
    DatastoreSource,
    Expert,
    HistorySource,
    Recycled,
    TokenAssociations,
    skip_gram_expert,
)

MIN_PROB, CHAIN_MIN_PATH_PROB = 1 / 2048, 1 / 256
# Initial weights of experts that are not sequences of the request.
INITIAL_WEIGHTS = {"datastore": 0.0, "bigram": 0.0, "context-associated": 0.0}


class Weights:
    """Adapted weights by key."""

    def __init__(self):
        self.learned = defaultdict(float)
        self.num_updates = 0
        self.curves = [[float(knot - 8) for knot in range(17)] for _ in range(7)]

    def __getitem__(self, key):
        if key[0] != "order":
            return self.learned[key]
        _, kind, order, *_ = key
        is_weak = kind.endswith(("-skip", "-gapped"))
        by_length = 0.9 * (order - 1) + INITIAL_WEIGHTS.get(kind, 1.5)
        return self.learned[key] + (-1.0 if is_weak else by_length)

    def points(self, prob, total):
        """Return the weight of each knot of each curve."""
        prob = min(max(prob, 1e-6), 1 - 1e-6)
        odds = min(max(log(prob / (1 - prob)), -8), 8)
        doublings = min(max(log2(total / 0.25), 0), 6)
        return {
            (curve, knot): (1 - abs(doublings - curve)) * (1 - abs(odds + 8 - knot))
            for curve in range(7)
            for knot in range(17)
            if abs(doublings - curve) < 1 and abs(odds + 8 - knot) < 1
        }

    def calibrated(self, prob, total):
        points = self.points(prob, total).items()
        return 1 / (1 + exp(-sum(self.curves[c][k] * part for (c, k), part in points)))


class SearchLimits(NamedTuple):
    matches: tuple  # of the context, and the number of occurrences that is enough
    requery_min_prob: float  # of a node that queries the datastore again
    child_ratio: float  # of the best child and its parent
    prune_ratio: float  # of a candidate and the least path that fits
    full_search_min_prob: float  # of a node with all experts
    max_skip_grams: int  # occurrences that are read for skip-grams
    occurrences: tuple  # enough of them, at most read, matched across a gap


EFFORTS = {
    "low": SearchLimits((3, 32), float("inf"), 0.4, 1.0, 0.3, 8, (4, 256, False)),
    "normal": SearchLimits((3, 64), 0.1, 0.5, 0.0, 0.0, 32, (16, 512, True)),
}


class ReferenceRequest:
    def __init__(self, documents, separator, earlier, bigrams, effort):
        self.search_limits, self.weights = EFFORTS[effort], Weights()
        self.effort = self.search_limits
        self.datastore = DatastoreSource(documents, separator) if documents else None
        self.separator, self.bigrams, self.memory = separator, bigrams, list(earlier)
        self.recycled, self.associations = Recycled(), TokenAssociations()
        self.context, self.uses, self.has_prompt = [], Counter(), False
        self.frequencies = Counter(
            token for document in documents for token in document if token < VOCAB_SIZE
        )
        self.tree, self.known, self.root_skip_grams = {}, {}, {}
        # Set once rounding decides a candidate or the top-1 token: the core may differ afterwards.
        self.is_on_edge = False

    def observe(self, tokens):
        self.learn(tokens)
        if tokens:
            before = self.known.get(tuple(tokens[:-1]))
            self.root_skip_grams = self.skip_grams(before, tokens[-1]) if before else {}
        for token in tokens[-400:]:
            self.uses[token] += 2 if self.context else 1
        for token in tokens:
            if self.has_prompt and self.context:
                self.associations.learn(self.context, token)
            self.context.append(token)
        self.has_prompt = True
        self.tree, self.known = {}, {}

    def check(self, drafted, max_nodes, is_chain):
        """Assert that a draft, given as the probability of each path, is the expected one.

        Equally likely nodes may come in any order: each is compared as it was drafted. A chain
        continues with the likeliest child of its last node.
        """
        self.tree, self.known, pending = {}, {}, {}
        limits = self.search_limits
        min_prob = max(limits.full_search_min_prob, 0.01 if max_nodes > 64 else 0.0)
        self.effort = limits._replace(full_search_min_prob=min_prob)
        total, likely = 0.0, 1.0
        if max_nodes and self.context:
            least = CHAIN_MIN_PATH_PROB if is_chain else 0.0
            self.expand((), 1.0, pending, least)
        for path, said in drafted.items():
            if self.is_on_edge:
                return
            prob = pending.pop(path)
            assert prob > 0.9999 * max(pending.values(), default=0), path
            self.tree[path] = prob
            total += prob
            likely = min(self.weights.calibrated(prob, total), likely)
            assert abs(said - likely) <= 1e-3 * likely, (path, said, likely)
            if is_chain:
                pending.clear()
            free = max_nodes - len(self.tree)
            likeliest = sorted(pending.values(), reverse=True)[:free]
            best_child_prob = self.effort.child_ratio * prob
            can_gain, *edges = (
                free and (len(likeliest) < free or factor * best_child_prob > likeliest[-1])
                for factor in (1, 0.9999, 1.0001)
            )
            self.is_on_edge |= edges[0] != edges[1]
            if can_gain and path[-1] != self.separator:
                least = likeliest[free - 1] if len(likeliest) >= free else 0.0
                least = min(CHAIN_MIN_PATH_PROB, prob / 10) if is_chain else least
                self.expand(path, prob, pending, least)
        is_full = len(drafted) == max_nodes or self.is_on_edge
        assert is_full or not pending

    def expand(self, path, prob, pending, least=0.0):
        effort, tail = self.effort, [*self.context[-32:], *path]
        floor = min(MIN_PROB, 0.75 * prob)
        min_prob = max(floor, effort.prune_ratio * least)
        parent = self.known.get(path[:-1]) if path else None
        experts, groups, occurrences = [], [], {}
        if self.datastore:
            within = tail
            if self.separator in tail:
                within = tail[len(tail) - tail[::-1].index(self.separator) :]
            if parent is None:
                groups = self.datastore.look_up(within, *effort.matches)
            else:
                groups = self.datastore.follow(parent["groups"], tail[-1])
                if prob >= effort.requery_min_prob:
                    groups = self.datastore.refresh(groups, within)
            is_full = prob >= effort.full_search_min_prob
            experts += self.datastore.experts(groups, tail[-1], min_prob / prob, is_full)
        texts = {"context": HistorySource(self.context), "memory": HistorySource(self.memory)}
        for kind, text in texts.items():
            of_parent = parent and parent["occurrences"][kind]
            occurrences[kind] = text.find(of_parent, tail, prob, *effort.occurrences)
            experts += text.experts(kind, occurrences[kind][0])
        skip_grams = self.root_skip_grams
        if path:
            is_full = prob >= effort.full_search_min_prob
            skip_grams = self.skip_grams(parent, tail[-1]) if is_full else {}
        edges = (effort.requery_min_prob, effort.full_search_min_prob)
        self.is_on_edge |= any(abs(prob - edge) < 1e-5 for edge in edges)
        experts += [skip_gram_expert(kind, *skip) for kind, skip in skip_grams.items()]
        experts += self.associations.experts(self.context, path)
        experts += self.recycled.experts(tail)
        experts += [Expert("bigram", 1, 0, 1, self.bigrams[tail[-1]], 1.0)]
        experts = [expert for expert in experts if expert.counts]
        self.known[path] = node = self.mix(experts, tail, min_prob / prob)
        edges = (share * prob / min_prob for share in node["shares"].values())
        self.is_on_edge |= any(abs(edge - 1) < 1e-4 for edge in edges)
        node.update(groups=groups, occurrences=occurrences)
        for token, likelihood in node["probs"].items():
            if prob * likelihood >= floor:
                pending[(*path, token)] = prob * likelihood
            self.is_on_edge |= abs(prob * likelihood / floor - 1) < 1e-4

    def skip_grams(self, node, token):
        """Return the skip-grams of each kind after a node for tokens other than `token`."""
        skip_grams = {}
        if self.datastore:
            skip_grams["datastore-skip"] = self.datastore.skip_grams(node["groups"], token)
        for kind, tokens in (("context", self.context), ("memory", self.memory)):
            occurrences = node["occurrences"][kind][0]
            source, most = HistorySource(tokens), self.effort.max_skip_grams
            skip_grams[f"{kind}-skip"] = source.skip_grams(occurrences, token, most)
        return skip_grams

    def mix(self, experts, tail, min_child_prob):
        top_tokens = {}
        for expert in experts:
            top_tokens.setdefault(expert.kind, expert.top)
        for expert in experts:
            *expert.keys, expert.reliability_key = self.expert_keys(expert, top_tokens, tail[-1])
        scores = [sum(self.weights[key] for key in expert.keys) for expert in experts]
        total = 1 + sum(exp(0.85 * score) for score in scores)
        shares = Counter()
        for expert, score in zip(experts, scores, strict=True):
            expert.odds, expert.weight = exp(score), exp(0.85 * score) / total
            for token, count in expert.counts.items():
                shares[token] += expert.weight * count / expert.total
        chosen = {token: share for token, share in shares.items() if share >= min_child_prob}
        top_token = min(chosen, key=lambda token: (-chosen[token], token), default=None)
        parts = {t: [e.weight * e.counts.get(t, 0) / e.total for e in experts] for t in chosen}
        ties = (t for t in chosen if abs(chosen[t] - chosen[top_token]) < 1e-6 * chosen[top_token])
        self.is_on_edge |= any(parts[token] != parts[top_token] for token in ties)
        keys = {t: self.candidate_keys(t, s, t == top_token, tail) for t, s in chosen.items()}
        scores = {}
        for token, share in chosen.items():
            scores[token] = sum(self.weights[key] for key in keys[token])
            scores[token] += sum(
                self.reliability(e, token) * e.ratio(token, share) for e in experts
            )
        probs, learned = (
            corrected(chosen, {token: part * score for token, score in scores.items()})
            for part in (0.8, 1)
        )
        node = {"experts": experts, "shares": shares, "keys": keys}
        return node | {"probs": probs, "learned": learned}

    def reliability(self, expert, token):
        """Return the reliability of an expert, with a term for a token that it proposes."""
        reliability = self.weights[expert.reliability_key]
        if token in expert.counts:
            reliability += self.weights["token-reliability", expert.kind, token]
        return reliability

    def expert_keys(self, expert, top_tokens, last):
        size = log2(expert.num_matches)
        order = max(1, sum(expert.order >= least for least in (1, 2, 3, 4, 5, 7, 10, 16)))
        distinct = len(expert.counts)
        support_bucket = 0 if distinct == 1 else 1 if distinct < 0.3 * expert.num_matches else 2
        others = {"datastore": ("context", "memory"), "context": ("datastore", "memory")}
        compared = [
            0 if other not in top_tokens else 1 if top_tokens[other] == expert.top else 2
            for other in others.get(expert.kind, ("datastore", "context"))
        ]
        is_alone = top_tokens[expert.kind] != expert.top
        return (
            ("order", expert.kind, order, min(floor(size / 2), 7), support_bucket),
            ("agreement", expert.kind, min(expert.rank, 4), *compared, is_alone),
            ("last", expert.kind, last),
            ("top_token", expert.kind, expert.top, support_bucket),
            ("reliability", expert.kind, min(expert.rank, 2), order, min(floor(size / 1.5), 3)),
        )

    def candidate_keys(self, token, share, is_top, tail):
        unlikeliness = min(floor(-1.5 * log2(min(share, 1))), 15)
        use = sum(self.uses[token] > limit for limit in (0, 2, 6, 15))
        frequency = (self.frequencies[token] + 1).bit_length() - 1
        recent = tail[::-1][:8]
        position = recent.index(token) + 1 if token in recent else 0
        return (
            ("use", use, min(frequency // 2, 12), unlikeliness // 4, is_top),
            ("token", token),
            ("recent", position, unlikeliness),
            ("pair", tail[-1], token),
        )

    def learn(self, tokens):
        self.learn_calibration(tokens)
        path = ()
        for token in tokens:
            if path not in self.known:
                return
            self.learn_node(self.known[path], token)
            path = (*path, token)

    def learn_node(self, node, token):
        weights, experts = self.weights, node["experts"]
        rate_scale = 1 + 600 / (300 + weights.num_updates)
        weights.num_updates += 1
        shares = [e.odds * e.counts.get(token, 0) / e.total for e in experts]
        total, odds = 1e-3 + sum(shares), 1 + sum(e.odds for e in experts)
        for expert, share in zip(experts, shares, strict=True):
            gradient = rate_scale * (share / total - expert.odds / odds)
            for key, rate in zip(expert.keys, (0.3, 0.12, 0.12, 0.12), strict=True):
                weights.learned[key] += rate * gradient
        learned = node["learned"].items()
        gradients = {t: rate_scale * ((t == token) - prob) for t, prob in learned}
        gradients = {t: gradient for t, gradient in gradients.items() if abs(gradient) >= 1e-4}
        for candidate, gradient in gradients.items():
            for key in node["keys"][candidate]:
                rate = 0.06 if key[0] in ("token", "pair") else 0.03
                weights.learned[key] += rate * gradient
        for expert in experts:
            ratios = {t: g * expert.ratio(t, node["shares"][t]) for t, g in gradients.items()}
            weights.learned[expert.reliability_key] += 0.006 * sum(ratios.values())
            for t in ratios.keys() & expert.counts.keys():
                weights.learned["token-reliability", expert.kind, t] += 0.009 * ratios[t]

    def learn_calibration(self, tokens):
        weights, total, changes = self.weights, 0.0, Counter()
        for path, prob in self.tree.items():
            total += prob
            is_known = path[: len(tokens)] != tuple(tokens) or len(path) == len(tokens)
            if is_known:
                is_hit = path == tuple(tokens[: len(path)])
                error = is_hit - weights.calibrated(prob, total)
                for (curve, knot), part in weights.points(prob, total).items():
                    weights.curves[curve][knot] += 0.01 * error * part
                    changes[knot] += 0.02 * error * part
        for curve in weights.curves:
            for knot in range(17):
                curve[knot] = max(curve[knot] + changes[knot], *curve[:knot], -100)


def corrected(shares, scores):
    """Return the probabilities of candidates after the correction by scores."""
    odds = {token: share * exp(scores[token]) for token, share in shares.items()}
    total = max(1 - sum(shares.values()), 1e-6) + sum(odds.values())
    return {token: each / total for token, each in odds.items()}
