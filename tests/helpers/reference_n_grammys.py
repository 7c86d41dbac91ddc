"""N-Grammys and prompt lookup in plain Python, written from the papers: slow, short, meant to be
obviously right."""

import math


def unigram(inputs, outputs):
    """Section 4.1: the vocabulary by ``d(x) = |u_x - mean u|_V``, nearest first.

    `inputs` and `outputs` are lists of rows: the embeddings v_x and u_x.
    """
    mean = [math.fsum(column) / len(outputs) for column in zip(*outputs, strict=True)]

    def distance(token):
        """<a, a>_V is the sum over all tokens x of (a . v_x)^2."""
        a = [one - other for one, other in zip(outputs[token], mean, strict=True)]
        return math.fsum(math.fsum(map(math.prod, zip(a, v, strict=True))) ** 2 for v in inputs)

    return sorted(range(len(outputs)), key=distance)


def extended_bigram(bigram, last, k, w):
    """Section 4.1, Extensions: the k best tokens after `last`, each continued greedily to w."""
    rows = []
    for token in bigram[last][:k]:
        row = [token]
        while len(row) < w:
            row.append(bigram[row[-1]][0])
        rows.append(row)
    return rows


def context_ngrams(context, k, w, q):
    """Section 4.2 and appendix B.2: the k most frequent of the w tokens after the last q tokens.

    Ties are for the match that came later in the context.
    """
    found = followers(context, w, q)
    latest = {row: start for start, row in enumerate(found)}
    return sorted(latest, key=lambda row: (-found.count(row), -latest[row]))[:k]


def followers(context, w, q):
    """The w tokens after each earlier occurrence of the last q, in the order of the context."""
    grams = [context[start : start + q + w] for start in range(len(context) - q - w + 1)]
    return [tuple(gram[q:]) for gram in grams if gram[:q] == context[-q:]]


def context_shares(context, k, w, q):
    """Return the fraction of all occurrences that continue with each path of the k rows."""
    rows, found = context_ngrams(context, k, w, q), followers(context, w, q)
    return {
        path: sum(found.count(row) for row in rows if row[: len(path)] == path) / len(found)
        for path in prefixes(rows)
    }


def rows(strategy, context, bigram, unigram, k, w, q):
    """The rows of a draft, in the paper's order."""
    if strategy == "unigram":
        return [[token] for token in unigram[:k]]
    if strategy == "bigram":
        return extended_bigram(bigram, context[-1], k, 1)
    if strategy == "extended-bigram":
        return extended_bigram(bigram, context[-1], k, w)
    found = context_ngrams(context, k, w, q)
    if strategy == "mixed":  # section 4.3
        found += extended_bigram(bigram, context[-1], k - len(found), w)
    return found


def prefixes(rows):
    """The paths of the rows' prefix tree, in the order in which the rows add them."""
    found = {}
    for row in rows:
        for length in range(1, len(row) + 1):
            found.setdefault(tuple(row[:length]))
    return list(found)


def longest_match(context, max_match):
    """The length of the longest suffix that came before, and where its first occurrence ends."""
    for length in range(min(max_match, len(context) - 1), 0, -1):
        suffix = context[-length:]
        for start in range(len(context) - length):
            if context[start : start + length] == suffix:
                return length, start + length
    return 0, len(context)
