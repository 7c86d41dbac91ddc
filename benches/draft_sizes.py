"""Speed of measured draft sizes where the times of steps are known, without a model.

    python benches/draft_sizes.py [ROWS.jsonl]

The text repeats itself, or is that of recorded rows with "prompt" and "completion", whose words
stand for tokens. A step takes the time that Gemma 3 270M takes in llama.cpp, times noise. The bound
is an oracle's, which knows how many of 15 drafted tokens are right.
"""

from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path

from specds._core import EngineDrafter

GEMMA = [1, 2.1, 3.5, 3.0, 4.35, 4.0, 5.15, 4.8, 6.5, 5.9, 7.0, 6.74, 8.0, 7.8, 9.0, 8.9, 10.1]
WIDTH, VOCAB_SIZE = 15, 250_000
NOISES = {
    "exact": lambda _: 1.0,
    "30 % of steps 2 to 4 times": lambda rng: rng.uniform(2, 4) if rng.random() < 0.3 else 1.0,
    "all steps 1 to 4 times": lambda rng: rng.uniform(1, 4),
}
KEYS = ("prompt", "completion")
WHOLE = {"step_cost": "ignored", "min_prob": 0.0}


def loops(number):
    rng = random.Random(0)
    for _ in range(number):
        loop = rng.choices(range(5000), k=16)
        prompt = rng.choices(range(5000), k=150) + loop
        text = [rng.randrange(5000) if rng.random() < 0.08 else loop[n % 16] for n in range(56)]
        yield prompt, text


def recorded(path, number=25):
    ids = {}
    for line in path.read_text().splitlines()[:number]:
        words = [re.findall(r"\s?\w{1,6}|\s+|[^\w\s]", json.loads(line)[key]) for key in KEYS]
        prompt, text = ([ids.setdefault(word, len(ids)) for word in part] for part in words)
        yield prompt[-3000:], text[:250]


def speed(texts, noise=NOISES["exact"], rate=None, fixed=WIDTH, **options):
    """Return the tokens for each baseline step; with `rate`, an oracle cuts the drafts."""
    rng, seconds, tokens = random.Random(1), 0.0, 0
    options = {"memory_scope": "shared", "vocab_size": VOCAB_SIZE} | options
    drafter = EngineDrafter(times_steps=True, **options)
    for name, (prompt, text) in enumerate(texts):
        place = 1
        while place < len(text):
            drafter.sync([prompt + text[:place]], [str(name)])
            [draft], [size], _ = drafter.draft_chains(min(fixed, len(text) - place))
            rights = zip(draft[:size], text[place:], strict=False)
            right = next((n for n, (a, b) in enumerate(rights) if a != b), size)
            if rate is not None:
                gains = [min(right, n) - rate * GEMMA[n] for n in range(size + 1)]
                size = gains.index(max(gains))
            drafter.observe_step_time(0.02 * GEMMA[size] * noise(rng))
            seconds += GEMMA[size]
            new = min(right, size) + 1
            place, tokens = place + new, tokens + new
        drafter.sync([prompt + text], [str(name)])
        drafter.end([str(name)])
    return tokens / seconds


def main(paths):
    texts = [*recorded(Path(paths[0]))] if paths else [*loops(24)]
    known = [*enumerate(GEMMA, 1)]
    rows = {f"fixed at {size}": speed(texts, fixed=size, **WHOLE) for size in (3, 7, 15)}
    rows["known times"] = speed(texts, step_cost=known)
    rows |= {f"measured, {name}": speed(texts, noise) for name, noise in NOISES.items()}
    rows["bound"] = speed(texts, rate=speed(texts, rate=1.2, **WHOLE), **WHOLE)
    for name, gain in rows.items():
        print(f"{name:40} {gain:.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
