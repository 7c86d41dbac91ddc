"""Can a tenant learn what another one wrote, or make its drafts worse?"""

from collections.abc import Sequence

import numpy as np

from specds.bench.replay.measure import follow
from specds.bench.transcripts import Transcript
from specds.drafters import FusedDrafter, Memory, TokenTree

VOCAB_SIZE = 32_000
NUM_WORDS = 40
MAX_NODES = 32


def figures() -> list[str]:
    """The rows of the table, after its head."""
    rows = [("attack", "tried", "succeeded"), ("---", "---:", "---:")]
    for repeats, tenant in ((3, "bob"), (20, "bob"), (20, "ann")):
        tried, right = extract(repeats, tenant)
        who = "another tenant" if tenant == "bob" else "the same tenant, as a control"
        name = f"read a token of a secret written {repeats} times, of {NUM_WORDS} guesses, by {who}"
        rows.append((name, str(tried), f"{right} (chance {tried / NUM_WORDS:.0f})"))
    worse = sum(poisoned(seed) != alone(seed) for seed in range(20))
    rows.append(("change another tenant's drafts by 4,000 misleading tokens", "20", str(worse)))
    cost = f"{cost_of_tenant():,}"
    rows.append(("bytes of a new tenant who wrote 32 tokens", "", cost))
    return [f"| {' | '.join(row)} |" for row in rows]


def serve(
    drafter: FusedDrafter, tenant: str, prompt: Sequence[int], answer: Sequence[int]
) -> list[TokenTree]:
    """The drafts for an answer."""
    transcript = Transcript(tenant, np.array(prompt), np.array(answer))
    session = drafter.session(prompt, tenant)
    return [each.step.tree for each in follow(session, transcript, MAX_NODES)]


def extract(repeats: int, tenant: str, num_secrets: int = 5) -> tuple[int, int]:
    """How many tokens of Ann's secrets `tenant` tried to read, and guessed first."""
    tried = right = 0
    for seed in range(num_secrets):
        random = np.random.default_rng(seed)
        start, *words = random.choice(np.arange(3000, VOCAB_SIZE), NUM_WORDS + 1, replace=False)
        secret = random.choice(words, 8, replace=False).tolist()
        drafter = FusedDrafter(memory=Memory(VOCAB_SIZE))
        text = [[*random.integers(100, 3000, 5), start, *secret] for _ in range(repeats)]
        serve(drafter, "ann", [5], [int(token) for token in np.concatenate(text)])
        for before, token in zip([start, *secret], secret, strict=False):
            scores = {word: score(drafter, tenant, random, before, word) for word in words}
            tried += 1
            right += max(scores, key=lambda word: scores[word]) == token
    return tried, right


def score(
    drafter: FusedDrafter, tenant: str, random: np.random.Generator, before: int, word: int
) -> float:
    """How much likelier a word is drafted than another, where both follow a token as often."""
    other, total = 29, 0.0
    filler = random.integers(100, 3000, 12).tolist()
    for first, second in ((word, other), (other, word)):
        prompt = [*filler[:4], before, first, *filler[4:8], before, second, *filler[8:], before]
        tree = drafter.session(prompt, tenant).draft(16)
        for token, parent, prob in zip(tree.token_ids, tree.parents, tree.probs, strict=True):
            if parent == -1 and token in (word, other):
                total += float(prob if token == word else -prob)
    return total


def texts(seed: int) -> tuple[list[int], list[int]]:
    """What misleads, and a text that repeats itself with changes."""
    random = np.random.default_rng(seed)
    misleading = [[1, 2, 3, token] for token in random.integers(0, 2000, 1000)]
    base = random.integers(0, 2000, 60)
    changed = [np.where(random.random(60) < 0.1, random.integers(0, 2000, 60), base)]
    changed *= 6
    return np.concatenate(misleading).tolist(), np.concatenate(changed).tolist()


def alone(seed: int) -> list[list[float]]:
    """The probabilities of Bob's drafts."""
    _, text = texts(seed)
    return drafted(FusedDrafter(memory=Memory(VOCAB_SIZE)), text)


def poisoned(seed: int) -> list[list[float]]:
    """The same after Ann's text."""
    misleading, text = texts(seed)
    drafter = FusedDrafter(memory=Memory(VOCAB_SIZE))
    serve(drafter, "ann", [3], misleading)
    return drafted(drafter, text)


def drafted(drafter: FusedDrafter, text: list[int]) -> list[list[float]]:
    return [tree.probs.tolist() for tree in serve(drafter, "bob", text[:60], text[60:])]


def cost_of_tenant() -> int:
    """What a tenant takes after a request of 32 tokens."""
    drafter = FusedDrafter(memory=Memory(VOCAB_SIZE))
    serve(drafter, "ann", [1, 2], list(range(30)))
    return drafter.memory.num_bytes if drafter.memory else 0
