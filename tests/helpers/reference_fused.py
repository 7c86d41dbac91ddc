"""A naive twin of the fused drafter: dictionaries and double precision, node by node.

It says what the core should draft of texts that are so short that nothing is sampled. Its words are
those of `rust/core/fused`; what each source says stands in `reference_sources`.
"""

from collections import Counter, defaultdict
from math import exp, floor, log, log2
from typing import NamedTuple

from reference_sources import VOCAB_SIZE, Anchors, Expert, Passages, Recycled, Text, skip_expert

MIN_PROB, RARE_IN_CHAIN = 1 / 2048, 1 / 256
# What a source's evidence counts before anything is learned.
OWN = {"datastore": 0.0, "bigram": 0.0, "echo": 0.0}


class Weights:
    """What was learned, by key."""

    def __init__(self):
        self.learned = defaultdict(float)
        self.num_lessons = 0
        self.curves = [[float(knot - 8) for knot in range(17)] for _ in range(7)]

    def __getitem__(self, key):
        if key[0] != "order":
            return self.learned[key]
        _, kind, order, *_ = key
        is_weak = kind.endswith(("-skip", "-edited"))
        return self.learned[key] + (-1.0 if is_weak else 0.9 * (order - 1) + OWN.get(kind, 1.5))

    def corners(self, prob, total):
        """What each knot of each curve counts."""
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
        corners = self.corners(prob, total).items()
        return 1 / (1 + exp(-sum(self.curves[c][k] * part for (c, k), part in corners)))


class Effort(NamedTuple):
    """How much is read."""

    matches: tuple  # of the context, and how often one occurs that is enough
    likely: float  # a node is looked up in the datastore again
    hope: float  # a child is hoped to be of its parent
    slack: float  # a candidate is at least of what fits
    full_from: float  # a node has all experts
    most_skipped: int  # places tell what follows another token
    reading: tuple  # places are enough, are looked at at most, are matched beyond an edit


EFFORTS = {
    "low": Effort((3, 32), float("inf"), 0.4, 1.0, 0.3, 8, (4, 256, False)),
    "normal": Effort((3, 64), 0.1, 0.5, 0.0, 0.0, 32, (16, 512, True)),
}


class Request:
    """One request, with weights of its own."""

    def __init__(self, documents, separator, earlier, bigrams, effort):
        self.usual, self.weights = EFFORTS[effort], Weights()
        self.effort = self.usual
        self.passages = Passages(documents, separator) if documents else None
        self.separator, self.bigrams, self.memory = separator, bigrams, list(earlier)
        self.recycled, self.anchors = Recycled(), Anchors()
        self.context, self.uses, self.has_prompt = [], Counter(), False
        self.frequencies = Counter(
            token for document in documents for token in document if token < VOCAB_SIZE
        )
        self.tree, self.known, self.skipped = {}, {}, {}
        # Whether rounding decided what is a candidate, or the likeliest: from then on the core may
        # hold otherwise.
        self.is_on_edge = False

    def observe(self, tokens):
        self.learn(tokens)
        if tokens:
            before = self.known.get(tuple(tokens[:-1]))
            self.skipped = self.skips(before, tokens[-1]) if before else {}
        for token in tokens[-400:]:
            self.uses[token] += 2 if self.context else 1
        for token in tokens:
            if self.has_prompt and self.context:
                self.anchors.learn(self.context, token)
            self.context.append(token)
        self.has_prompt = True
        self.tree, self.known = {}, {}

    def check(self, drafted, max_nodes, is_chain):
        """Whether a draft, by the probability of each path, is what it should be.

        Of equally likely nodes any may come first: each is compared as it was drafted. A chain goes
        on with the likeliest child of its last node.
        """
        self.tree, self.known, pending = {}, {}, {}
        full_from = max(self.usual.full_from, 0.01) if max_nodes > 64 else self.usual.full_from
        self.effort = self.usual._replace(full_from=full_from)
        total, likely = 0.0, 1.0
        if max_nodes and self.context:
            least = RARE_IN_CHAIN if is_chain else 0.0
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
            is_hopeful, *edges = (
                free and (len(likeliest) < free or factor * self.effort.hope * prob > likeliest[-1])
                for factor in (1, 0.9999, 1.0001)
            )
            self.is_on_edge |= edges[0] != edges[1]
            if is_hopeful and path[-1] != self.separator:
                least = likeliest[free - 1] if len(likeliest) >= free else 0.0
                least = min(RARE_IN_CHAIN, prob / 10) if is_chain else least
                self.expand(path, prob, pending, least)
        is_full = len(drafted) == max_nodes or self.is_on_edge
        assert is_full or not pending

    def expand(self, path, prob, pending, least=0.0):
        effort, tail = self.effort, [*self.context[-32:], *path]
        floor = min(MIN_PROB, 0.75 * prob)
        min_prob = max(floor, effort.slack * least)
        parent = self.known.get(path[:-1]) if path else None
        experts, groups, places = [], [], {}
        if self.passages:
            within = tail
            if self.separator in tail:
                within = tail[len(tail) - tail[::-1].index(self.separator) :]
            if parent is None:
                groups = self.passages.look_up(within, *effort.matches)
            else:
                groups = self.passages.follow(parent["groups"], tail[-1])
                groups = self.passages.refresh(groups, within) if prob >= effort.likely else groups
            is_full = prob >= effort.full_from
            experts += self.passages.experts(groups, tail[-1], min_prob / prob, is_full)
        texts = {"context": Text(self.context), "memory": Text(self.memory)}
        for kind, text in texts.items():
            places[kind] = text.find(parent and parent["places"][kind], tail, prob, *effort.reading)
            experts += text.experts(kind, places[kind][0])
        skipped = self.skipped
        if path:
            skipped = self.skips(parent, tail[-1]) if prob >= effort.full_from else {}
        edges = (effort.likely, effort.full_from)
        self.is_on_edge |= any(abs(prob - edge) < 1e-5 for edge in edges)
        experts += [skip_expert(kind, *skip) for kind, skip in skipped.items()]
        experts += self.anchors.experts(self.context, path)
        experts += self.recycled.experts(tail)
        experts += [Expert("bigram", 1, 0, 1, self.bigrams[tail[-1]], 1.0)]
        experts = [expert for expert in experts if expert.counts]
        self.known[path] = node = self.mix(experts, tail, min_prob / prob)
        edges = (share * prob / min_prob for share in node["shares"].values())
        self.is_on_edge |= any(abs(edge - 1) < 1e-4 for edge in edges)
        node.update(groups=groups, places=places)
        for token, likelihood in node["probs"].items():
            if prob * likelihood >= floor:
                pending[(*path, token)] = prob * likelihood
            self.is_on_edge |= abs(prob * likelihood / floor - 1) < 1e-4

    def skips(self, node, token):
        """What followed where all but the last token of a path is the same: by kind."""
        skips = {}
        if self.passages:
            skips["datastore-skip"] = self.passages.skip(node["groups"], token)
        for kind, tokens in (("context", self.context), ("memory", self.memory)):
            places = node["places"][kind][0]
            skips[f"{kind}-skip"] = Text(tokens).skip(places, token, self.effort.most_skipped)
        return skips

    def mix(self, experts, tail, min_share):
        favourites = {}
        for expert in experts:
            favourites.setdefault(expert.kind, expert.top)
        for expert in experts:
            *expert.keys, expert.trust_key = self.expert_keys(expert, favourites, tail[-1])
        scores = [sum(self.weights[key] for key in expert.keys) for expert in experts]
        total = 1 + sum(exp(0.85 * score) for score in scores)
        shares = Counter()
        for expert, score in zip(experts, scores, strict=True):
            expert.odds, expert.weight = exp(score), exp(0.85 * score) / total
            for token, count in expert.counts.items():
                shares[token] += expert.weight * count / expert.total
        chosen = {token: share for token, share in shares.items() if share >= min_share}
        favourite = min(chosen, key=lambda token: (-chosen[token], token), default=None)
        parts = {t: [e.weight * e.counts.get(t, 0) / e.total for e in experts] for t in chosen}
        ties = (t for t in chosen if abs(chosen[t] - chosen[favourite]) < 1e-6 * chosen[favourite])
        self.is_on_edge |= any(parts[token] != parts[favourite] for token in ties)
        keys = {t: self.candidate_keys(t, s, t == favourite, tail) for t, s in chosen.items()}
        scores = {}
        for token, share in chosen.items():
            scores[token] = sum(self.weights[key] for key in keys[token])
            scores[token] += sum(self.trust(e, token) * e.ratio(token, share) for e in experts)
        probs, learned = (
            corrected(chosen, {token: part * score for token, score in scores.items()})
            for part in (0.8, 1)
        )
        node = {"experts": experts, "shares": shares, "keys": keys}
        return node | {"probs": probs, "learned": learned}

    def trust(self, expert, token):
        """What an expert's opinion on a token is worth: more is known of it where he names it."""
        of_token = self.weights["token-trust", expert.kind, token] if token in expert.counts else 0
        return self.weights[expert.trust_key] + of_token

    def expert_keys(self, expert, favourites, last):
        size = log2(expert.num_matches)
        order = max(1, sum(expert.order >= least for least in (1, 2, 3, 4, 5, 7, 10, 16)))
        distinct = len(expert.counts)
        spread = 0 if distinct == 1 else 1 if distinct < 0.3 * expert.num_matches else 2
        others = {"datastore": ("context", "memory"), "context": ("datastore", "memory")}
        compared = [
            0 if other not in favourites else 1 if favourites[other] == expert.top else 2
            for other in others.get(expert.kind, ("datastore", "context"))
        ]
        is_alone = favourites[expert.kind] != expert.top
        return (
            ("order", expert.kind, order, min(floor(size / 2), 7), spread),
            ("agreement", expert.kind, min(expert.rank, 4), *compared, is_alone),
            ("last", expert.kind, last),
            ("favourite", expert.kind, expert.top, spread),
            ("trust", expert.kind, min(expert.rank, 2), order, min(floor(size / 1.5), 3)),
        )

    def candidate_keys(self, token, share, is_favourite, tail):
        unlikeliness = min(floor(-1.5 * log2(min(share, 1))), 15)
        use = sum(self.uses[token] > limit for limit in (0, 2, 6, 15))
        frequency = (self.frequencies[token] + 1).bit_length() - 1
        recent = tail[::-1][:8]
        place = recent.index(token) + 1 if token in recent else 0
        return (
            ("use", use, min(frequency // 2, 12), unlikeliness // 4, is_favourite),
            ("token", token),
            ("recent", place, unlikeliness),
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
        lesson = 1 + 600 / (300 + weights.num_lessons)
        weights.num_lessons += 1
        shares = [e.odds * e.counts.get(token, 0) / e.total for e in experts]
        total, odds = 1e-3 + sum(shares), 1 + sum(e.odds for e in experts)
        for expert, share in zip(experts, shares, strict=True):
            gradient = lesson * (share / total - expert.odds / odds)
            for key, rate in zip(expert.keys, (0.3, 0.12, 0.12, 0.12), strict=True):
                weights.learned[key] += rate * gradient
        learned = node["learned"].items()
        gradients = {t: lesson * ((t == token) - prob) for t, prob in learned}
        gradients = {t: gradient for t, gradient in gradients.items() if abs(gradient) >= 1e-4}
        for candidate, gradient in gradients.items():
            for key in node["keys"][candidate]:
                rate = 0.06 if key[0] in ("token", "pair") else 0.03
                weights.learned[key] += rate * gradient
        for expert in experts:
            ratios = {t: g * expert.ratio(t, node["shares"][t]) for t, g in gradients.items()}
            weights.learned[expert.trust_key] += 0.006 * sum(ratios.values())
            for t in ratios.keys() & expert.counts.keys():
                weights.learned["token-trust", expert.kind, t] += 0.009 * ratios[t]

    def learn_calibration(self, tokens):
        weights, total, changes = self.weights, 0.0, Counter()
        for path, prob in self.tree.items():
            total += prob
            is_known = path[: len(tokens)] != tuple(tokens) or len(path) == len(tokens)
            if is_known:
                is_hit = path == tuple(tokens[: len(path)])
                error = is_hit - weights.calibrated(prob, total)
                for (curve, knot), part in weights.corners(prob, total).items():
                    weights.curves[curve][knot] += 0.01 * error * part
                    changes[knot] += 0.02 * error * part
        for curve in weights.curves:
            for knot in range(17):
                curve[knot] = max(curve[knot] + changes[knot], *curve[:knot], -100)


def corrected(shares, scores):
    """The probabilities of candidates."""
    odds = {token: share * exp(scores[token]) for token, share in shares.items()}
    total = max(1 - sum(shares.values()), 1e-6) + sum(odds.values())
    return {token: each / total for token, each in odds.items()}
