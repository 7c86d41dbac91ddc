"""Training of the prior weights of all fused drafters, `rust/core/weights/prior.bin`.

    python scripts/fit_prior.py CODE.specds CHAT.specds

Every second document of each datastore goes into a new one. Some of the others are replayed as if
a model had generated them, each with a new drafter that starts from the prior so far; its changes
of the token-independent weights are added to the prior. Every second time, a drafter without a
datastore then serves the next few documents and an edit, with one request cache for all. The result
is the mean over the second half of a pass, and over passes of other documents. After a change of
the tables of `rust/core/weights/initial.rs`, empty the file, and build first.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

from specds._core import Datastore, DatastoreBuilder, FusedState, Memory

PRIOR = Path(__file__).parents[1] / "rust/core/weights/prior.bin"
# In `learned`, the changes follow the version of the weights and the number of updates.
AT = 5
NUM_DOCUMENTS, NUM_PASSES = 800, 3
PROMPT, LONGEST, NODES = 48, 350, 32


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        corpora = [
            split(Datastore(path), Path(folder, str(number)))
            for number, path in enumerate(sys.argv[1:])
        ]
        priors = [fitted(corpora, number) for number in range(NUM_PASSES)]
    np.mean(priors, axis=0).astype("<f4").tofile(PRIOR)


def fitted(corpora: list[tuple[Datastore, list[np.ndarray]]], number: int) -> np.ndarray:
    """Return the prior of one pass over every `NUM_PASSES`-th document."""
    prior, priors = np.zeros(FusedState.NUM_WEIGHTS, "<f4"), []
    for turn in range(number, NUM_PASSES * NUM_DOCUMENTS, NUM_PASSES):
        for store, documents in corpora:
            if turn < len(documents):
                prior = prior + learned(Memory(store.vocab_size), [documents[turn]], prior, store)
                if turn % 2:
                    several = documents[turn : turn + 1 + turn % 6]  # two, four or six
                    prior = prior + learned(Memory(store.vocab_size), several, prior)
        priors.append(prior)
    return np.mean(priors[len(priors) // 2 :], axis=0)


def split(corpus: Datastore, path: Path) -> tuple[Datastore, list[np.ndarray]]:
    """Build a datastore of every second document; return it with some of the others."""
    given = {"vocab_size": corpus.vocab_size, "separator": corpus.separator}
    with DatastoreBuilder(path, **given) as builder:
        for number in range(0, corpus.num_documents, 2):
            tokens = corpus.document(number).token_ids
            builder.add_documents(tokens, [len(tokens)])
        step = max(2, corpus.num_documents // (NUM_PASSES * NUM_DOCUMENTS) // 2 * 2)
        chosen = range(1, corpus.num_documents, step)
        others = [corpus.document(number).token_ids for number in chosen]
        return builder.finish(), [tokens for tokens in others if len(tokens) > 2 * PROMPT]


def learned(
    memory: Memory, documents: list[np.ndarray], prior: np.ndarray, store: Datastore | None = None
) -> np.ndarray:
    """Return the weight changes of a new drafter that serves documents, one after another.

    Without a datastore, it also serves an edit of the last one.
    """
    state = FusedState(store, memory, effort="normal", prior=prior.tobytes())
    requests = [(document[:PROMPT], document[PROMPT:LONGEST]) for document in documents]
    if store is None:
        text = documents[-1][:LONGEST]
        requests.append((text, np.delete(text, slice(30, None, 60))))
    for prompt, answer in requests:
        session, text, at = state.session(), answer.tolist(), 0
        session.observe(prompt)
        while at < len(text):
            path = session.draft(NODES).follow(text[at:])
            session.observe(text[at : at + len(path) + 1])
            at += len(path) + 1
        session.finish()
    return np.frombuffer(state.learned(), "<f4", FusedState.NUM_WEIGHTS, AT)


if __name__ == "__main__":
    main()
