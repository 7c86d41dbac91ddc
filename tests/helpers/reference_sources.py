"""Sources of the reference implementation of the fused drafter, with dictionaries."""

from collections import Counter
from itertools import takewhile
from math import floor, log

VOCAB_SIZE = 4
ORDERS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)


class HistorySource:
    """Earlier occurrences of the last tokens of a path in a text."""

    def __init__(self, tokens):
        self.tokens = tokens

    def latest(self, suffix, limit):
        """Return the latest ends of a suffix with a successor, and true if there are more."""
        size = len(suffix)
        ends = range(len(self.tokens) - 2, size - 2, -1)
        ends = [end for end in ends if self.tokens[end - size + 1 : end + 1] == suffix]
        return ends[:limit], len(ends) > limit

    def find(self, parent, tail, prob, enough, most, match_gapped):
        """Return occurrences as `(next, length, gapped_len)`, and true if there may be more."""
        pairs = min(max(int(prob * 512), 8), most)
        found, is_cut = [], True
        if parent is not None:
            found = [
                (next_ + 1, min(length + 1, 63), gapped_len)
                for next_, length, gapped_len in parent[0]
                if self.tokens[next_] == tail[-1] and next_ + 1 < len(self.tokens)
            ]
            is_cut = parent[1]
        if is_cut and len(found) < enough:
            found, is_cut = [], False
            if len(tail) > 1:
                ends, is_cut = self.latest(tail[-2:], pairs)
                lengths = (common(self.tokens[: end + 1], tail) for end in ends)
                occurrences = zip(ends, lengths, strict=True)
                found = [self.occurrence(*each, tail, match_gapped) for each in occurrences]
        if len(found) >= enough:
            return found, True
        ends, more = self.latest(tail[-1:], pairs // 4)
        before = tail[-2] if len(tail) > 1 else None
        singles = [end for end in ends if end == 0 or self.tokens[end - 1] != before]
        found += [self.occurrence(end, 1, tail, match_gapped) for end in singles]
        return found, is_cut or more

    def occurrence(self, end, length, tail, match_gapped):
        gapped_len = 0
        if match_gapped and length < 32:
            text, tail = self.tokens[: end + 1 - length], tail[: len(tail) - length]
            edits = ((text[:-1], tail[:-1]), (text, tail[:-1]), (text[:-1], tail))
            gapped_len = max(common(*edited) for edited in edits)
        return end + 1, length, gapped_len

    def skip_grams(self, occurrences, token, most):
        """Return the longest length before a token other than `token`, and the tokens after it."""
        others = [(n, length) for n, length, _ in occurrences if self.tokens[n] != token]
        known = [(n, length) for n, length in others if n + 1 < len(self.tokens)]
        known = [(n, length) for n, length in known if None not in self.tokens[n : n + 2]][:most]
        order = max((length for _, length in known), default=0)
        counts = ((next_, 0.95**n * length / order) for n, (next_, length) in enumerate(known))
        return order, [(self.tokens[next_ + 1], count) for next_, count in counts]

    def experts(self, kind, occurrences):
        lengths = sorted({length for _, length, _ in occurrences}, reverse=True)[:3]
        for rank, length in enumerate(lengths):
            longest = [each for each in occurrences if each[1] >= length]
            counts = self.counts((next_, 1 + gapped_len) for next_, _, gapped_len in longest)
            yield Expert(kind, length, rank, len(longest), counts)
        gapped = [each for each in occurrences if each[2] >= 3]
        if gapped:
            _, lengths, gapped_lens = zip(*gapped, strict=True)
            rank, counts = max(lengths) - 1, self.counts((next_, 1) for next_, _, _ in gapped)
            yield Expert(f"{kind}-gapped", max(gapped_lens), rank, len(gapped), counts)

    def counts(self, occurrences):
        counts = Counter()
        for number, (position, times) in enumerate(occurrences):
            counts[self.tokens[position]] += times * 0.95**number
        return counts


def common(text, tail):
    """Return the number of equal last tokens, up to 32."""
    pairs = zip(text[::-1][:32], tail[::-1], strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))


class Expert:
    def __init__(self, kind, order, rank, num_matches, counts, total=None):
        self.kind, self.order, self.rank, self.num_matches = kind, order, rank, num_matches
        self.counts = {token: count for token, count in counts.items() if token is not None}
        self.total = total or sum(self.counts.values())
        self.top = min(self.counts, key=lambda t: (-self.counts[t], t), default=None)

    def ratio(self, token, share):
        smoothing = 0.3 * len(self.counts)
        ratio = (self.counts.get(token, 0) / share + smoothing) / (self.total + smoothing)
        return min(max(log(ratio), -3), 3)


class DatastoreSource:
    """Longest matches in a corpus, as groups of `(order, count, continuations)`."""

    def __init__(self, documents, separator):
        self.texts = [[*document, separator] for document in documents if document]
        self.separator = separator

    def occurrences(self, pattern, length=8):
        if self.separator in pattern or not pattern:
            return []
        found = []
        for text in self.texts:
            for start in range(len(text) - len(pattern)):
                if text[start : start + len(pattern)] == pattern:
                    continuation = text[start + len(pattern) :][:length]
                    found.append([token for token in continuation if token < VOCAB_SIZE])
        return found

    def suffix(self, tail, order):
        return self.occurrences(tail[-order:]) if order <= len(tail) else []

    def look_up(self, tail, most, enough):
        longest = 3
        while longest < len(ORDERS) and self.suffix(tail, ORDERS[longest]):
            longest += 1
        groups = []
        for order in reversed(ORDERS[1:longest]):
            groups = self.with_more(groups, order, tail)
            if len(groups) == most or (groups and groups[-1][1] >= enough):
                break
        return groups

    def with_more(self, groups, order, tail):
        """Return the groups, with one of this order if it has more occurrences than the last."""
        found = self.suffix(tail, order)
        is_more = len(found) > (groups[-1][1] if groups else 0)
        return [*groups, (order, len(found), found)] if is_more else groups

    def follow(self, groups, token):
        followed = [
            (order + 1, [p[1:] for p in found if p[:1] == [token]]) for order, _, found in groups
        ]
        return [(order, len(found), found) for order, found in followed if found]

    def refresh(self, groups, tail):
        for order in (3, 2):
            if not groups or groups[-1][0] > order:
                groups = self.with_more(groups, order, tail)
        return groups

    def skip_grams(self, groups, token):
        """Return skip-grams of the longest match of two tokens or more with four continuations."""
        for order, _, found in groups:
            if order > 1 and len(found) > 3:
                return order, [(p[1], 1.0) for p in found if len(p) > 1 and p[0] != token]
        return 0, []

    def experts(self, groups, token, min_child_prob, is_full):
        rank, last = 0, 0
        for order, number, found in groups:
            if number > last:
                last = number
                expert = Expert("datastore", order, rank, number, nexts(found))
                rank += bool(expert.counts)
                yield expert
        if is_full or rank == 0:
            found = self.occurrences([token], 1)
            counts = {t: c for t, c in nexts(found).items() if c >= min_child_prob * len(found)}
            yield Expert("datastore", 1, rank, len(found), counts, len(found))


class Recycled:
    """Latest predictions of the model by the tokens before them."""

    def __init__(self):
        self.predictions = {}

    def add(self, context, paths, predictions):
        for path, predicted in zip([(), *paths], predictions, strict=True):
            tokens = [*context, *path]
            for order in (1, 2):
                if len(tokens) >= order:
                    self.predictions[tuple(tokens[-order:])] = predicted

    def experts(self, tail):
        rank = 0
        for order in (2, 1):
            predicted = self.predictions.get(tuple(tail[-order:]) if len(tail) >= order else ())
            if predicted:
                counts = Counter()
                for position, token in enumerate(predicted[:8]):
                    counts[token] += 0.5**position
                yield Expert("recycled", order, rank, 1, counts)
                rank += 1


class TokenAssociations:
    """Associations of each token: `[number of occurrences, [[associated token, count], ...]]`."""

    def __init__(self):
        self.known = {}

    def learn(self, context, token):
        slot = self.known.setdefault(context[-1], [0, [[None, 0] for _ in range(5)]])
        if slot[0] == 255:
            slot[:] = [127, [[associated, count // 2] for associated, count in slot[1]]]
        slot[0] += 1
        occurrences = [at for at, other in enumerate(context) if other == token][::-1][:8]
        before = [at - 1 for at in occurrences if at]
        latest = [at for at in before if context[at] not in context[at + 1 : -1]]
        for associated in [context[at] for at in latest][:4]:
            self.add(slot[1], associated)

    def add(self, associations, associated):
        for known in associations:
            if known[1] and known[0] == associated:
                known[1] = min(known[1] + 1, 255)
                return
        least = min(associations, key=lambda known: known[1])
        least[1] = max(least[1] - 1, 0)
        if least[1] == 0:
            least[:] = [associated, 1]

    def experts(self, context, path):
        text = [*context, *path]
        total, associations = self.known.get(text[-1], (0, []))
        counts = {}
        for associated, count in associations:
            occurrences = [at for at, other in enumerate(text[:-1]) if other == associated]
            if occurrences and count and 5 * count >= total:
                token = text[occurrences[-1] + 1]
                counts[token] = max(count, counts.get(token, 0))
        if counts:
            order = 1 + floor(8 * max(counts.values()) / (total + 1))
            summed = max(total + 1, sum(counts.values()))
            yield Expert("context-associated", order, 0, total + 1, counts, summed)


def skip_gram_expert(kind, order, nexts):
    counts = Counter()
    for token, count in nexts:
        counts[token] += count
    return Expert(kind, order, 0, len(nexts), counts)


def nexts(continuations):
    return Counter(continuation[0] for continuation in continuations if continuation)
