"""The sources of the fused drafter's naive twin: what each says may follow, by dictionaries."""

from collections import Counter
from itertools import takewhile
from math import floor, log

VOCAB_SIZE = 4
ORDERS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)


class Text:
    """Where the last tokens of a path came before in a text."""

    def __init__(self, tokens):
        self.tokens = tokens

    def latest(self, suffix, limit):
        """The latest ends of a suffix that something follows, and whether there are more."""
        size = len(suffix)
        ends = range(len(self.tokens) - 2, size - 2, -1)
        ends = [end for end in ends if self.tokens[end - size + 1 : end + 1] == suffix]
        return ends[:limit], len(ends) > limit

    def find(self, parent, tail, prob, enough, most, finds_edits):
        """The places as `(next, length, beyond an edit)`, and whether there may be more."""
        pairs = min(max(int(prob * 512), 8), most)
        found, is_cut = [], True
        if parent is not None:
            found = [
                (next_ + 1, min(length + 1, 63), beyond)
                for next_, length, beyond in parent[0]
                if self.tokens[next_] == tail[-1] and next_ + 1 < len(self.tokens)
            ]
            is_cut = parent[1]
        if is_cut and len(found) < enough:
            found, is_cut = [], False
            if len(tail) > 1:
                ends, is_cut = self.latest(tail[-2:], pairs)
                lengths = (common(self.tokens[: end + 1], tail) for end in ends)
                places = zip(ends, lengths, strict=True)
                found = [self.place(*place, tail, finds_edits) for place in places]
        if len(found) >= enough:
            return found, True
        ends, more = self.latest(tail[-1:], pairs // 4)
        before = tail[-2] if len(tail) > 1 else None
        singles = [end for end in ends if end == 0 or self.tokens[end - 1] != before]
        found += [self.place(end, 1, tail, finds_edits) for end in singles]
        return found, is_cut or more

    def place(self, end, length, tail, finds_edits):
        beyond = 0
        if finds_edits and length < 32:
            text, tail = self.tokens[: end + 1 - length], tail[: len(tail) - length]
            edits = ((text[:-1], tail[:-1]), (text, tail[:-1]), (text[:-1], tail))
            beyond = max(common(*edited) for edited in edits)
        return end + 1, length, beyond

    def skip(self, places, token, most):
        """The longest length of places that go on with another token, and what follows that."""
        others = [(next_, length) for next_, length, _ in places if self.tokens[next_] != token]
        known = [(next_, length) for next_, length in others if next_ + 1 < len(self.tokens)]
        known = [(n, length) for n, length in known if None not in self.tokens[n : n + 2]][:most]
        order = max((length for _, length in known), default=0)
        counts = ((next_, 0.95**n * length / order) for n, (next_, length) in enumerate(known))
        return order, [(self.tokens[next_ + 1], count) for next_, count in counts]

    def experts(self, kind, places):
        lengths = sorted({length for _, length, _ in places}, reverse=True)[:3]
        for rank, length in enumerate(lengths):
            longest = [place for place in places if place[1] >= length]
            counts = self.counts((next_, 1 + beyond) for next_, _, beyond in longest)
            yield Expert(kind, length, rank, len(longest), counts)
        edited = [place for place in places if place[2] >= 3]
        if edited:
            _, lengths, beyond = zip(*edited, strict=True)
            rank, counts = max(lengths) - 1, self.counts((next_, 1) for next_, _, _ in edited)
            yield Expert(f"{kind}-edited", max(beyond), rank, len(edited), counts)

    def counts(self, places):
        counts = Counter()
        for number, (place, times) in enumerate(places):
            counts[self.tokens[place]] += times * 0.95**number
        return counts


def common(text, tail):
    """How many of the last tokens are the same, up to 32."""
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


class Passages:
    """What followed the longest matches in a corpus, as groups of `(order, count, passages)`."""

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
                    passage = text[start + len(pattern) :][:length]
                    found.append([token for token in passage if token < VOCAB_SIZE])
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
        """Groups, and one of this order where it has more occurrences than the last."""
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

    def skip(self, groups, token):
        """The same of the longest match of two tokens or more with four passages or more."""
        for order, _, found in groups:
            if order > 1 and len(found) > 3:
                return order, [(p[1], 1.0) for p in found if len(p) > 1 and p[0] != token]
        return 0, []

    def experts(self, groups, token, min_share, is_full):
        rank, last = 0, 0
        for order, number, found in groups:
            if number > last:
                last = number
                expert = Expert("datastore", order, rank, number, nexts(found))
                rank += bool(expert.counts)
                yield expert
        if is_full or rank == 0:
            found = self.occurrences([token], 1)
            counts = {t: c for t, c in nexts(found).items() if c >= min_share * len(found)}
            yield Expert("datastore", 1, rank, len(found), counts, len(found))


class Recycled:
    """The model's latest predictions by the tokens before them."""

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
                for place, token in enumerate(predicted[:8]):
                    counts[token] += 0.5**place
                yield Expert("recycled", order, rank, 1, counts)
                rank += 1


class Anchors:
    """Tokens whose latest followers came after a token, by that token: `[how often, anchors]`."""

    def __init__(self):
        self.known = {}

    def learn(self, context, token):
        slot = self.known.setdefault(context[-1], [0, [[None, 0] for _ in range(5)]])
        if slot[0] == 255:
            slot[:] = [127, [[anchor, count // 2] for anchor, count in slot[1]]]
        slot[0] += 1
        places = [place for place in range(len(context)) if context[place] == token][::-1][:8]
        befores = [place - 1 for place in places if place]
        latest = [place for place in befores if context[place] not in context[place + 1 : -1]]
        for anchor in [context[place] for place in latest][:4]:
            self.add(slot[1], anchor)

    def add(self, anchors, anchor):
        for known in anchors:
            if known[1] and known[0] == anchor:
                known[1] = min(known[1] + 1, 255)
                return
        least = min(anchors, key=lambda known: known[1])
        least[1] = max(least[1] - 1, 0)
        if least[1] == 0:
            least[:] = [anchor, 1]

    def experts(self, context, path):
        text = [*context, *path]
        total, anchors = self.known.get(text[-1], (0, []))
        counts = {}
        for anchor, count in anchors:
            places = [place for place in range(len(text) - 1) if text[place] == anchor]
            if places and count and 5 * count >= total:
                token = text[places[-1] + 1]
                counts[token] = max(count, counts.get(token, 0))
        if counts:
            order = 1 + floor(8 * max(counts.values()) / (total + 1))
            summed = max(total + 1, sum(counts.values()))
            yield Expert("echo", order, 0, total + 1, counts, summed)


def skip_expert(kind, order, nexts):
    counts = Counter()
    for token, count in nexts:
        counts[token] += count
    return Expert(kind, order, 0, len(nexts), counts)


def nexts(passages):
    return Counter(passage[0] for passage in passages if passage)
