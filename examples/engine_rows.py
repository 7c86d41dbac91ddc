"""Drafts for the rows of a serving engine, which verifies by itself: no torch, whole batches."""

import specds

# Two requests of an engine, by their tokens so far; both repeat themselves.
contexts = {"a": [5, 6, 7, 8, 5, 6], "b": [1, 2, 3, 1, 2, 3, 1]}
engine = specds.EngineDrafter(vocab_size=100)

for _ in range(3):
    # Whole contexts are passed; the engine drafter finds what is new in each.
    engine.sync([*contexts.values()], names=[*contexts])
    tokens, lengths, probs = engine.draft_chains(4)
    for name, draft, length in zip(contexts, tokens, lengths, strict=True):
        chain = draft[:length].tolist()
        print(name, contexts[name], "->", chain)
        # Here the engine would verify; let the target agree with the first token.
        contexts[name] += chain[:1] or [9]
engine.end([*contexts])  # a finished request teaches the next ones, if there is a memory
print(engine.stats())
