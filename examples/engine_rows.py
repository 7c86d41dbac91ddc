"""Drafts for the batches of a serving engine that verifies them itself, without torch."""

import specds

# Tokens so far of two requests; both repeat themselves.
contexts = {"a": [5, 6, 7, 8, 5, 6], "b": [1, 2, 3, 1, 2, 3, 1]}
engine = specds.EngineDrafter(vocab_size=100)

for _ in range(3):
    # Whole contexts are passed; the engine drafter finds the new tokens.
    engine.sync([*contexts.values()], names=[*contexts])
    tokens, lengths, probs = engine.draft_chains(4)
    for name, draft, length in zip(contexts, tokens, lengths, strict=True):
        chain = draft[:length].tolist()
        print(name, contexts[name], "->", chain)
        # The engine verifies here; in this example the target agrees with the first token.
        contexts[name] += chain[:1] or [9]
engine.end([*contexts])  # with a request cache, later requests draft from finished ones
print(engine.stats())
