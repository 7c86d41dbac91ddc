"""What would the target's last logits add as a ranker of drafts? Each way on a course of its own.

    python benches/last_logits.py MODEL DATASTORE TRANSCRIPTS...

Each request is written twice, greedily, with 32 nodes a pass: as fused drafts, and with its first
256 nodes re-ranked by the logits that chose the context's last token, less the unigram. Prints the
tokens and passes of both.
"""

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import torch

from specds import Datastore, FusedDrafter, TokenTree
from specds.accept.on_device import likeliest_on_host
from specds.bench.transcripts import read_files
from specds.drafters import FusedConfig
from specds.drafters.session import EMPTY_TREE
from specds.hierarchy.levels import CachedModel
from specds.loading import load_model

BETAS = np.array([0.15, 0.10, 0.04])  # by depth, fitted on 31 other requests of SmolLM2
NUM_DRAFTED, NUM_VERIFIED, NEW_TOKENS = 256, 32, 96


def main(name, datastore, *transcripts):
    torch.set_num_threads(1)
    model, tokenizer = load_model(name, device="cpu")
    store, cached, count = Datastore(datastore), CachedModel(model), Counter()
    logs = unigram(store, model.config.vocab_size)
    drafters = {way: FusedDrafter(store, FusedConfig(effort="normal")) for way in ("fused", "last")}
    for each in read_files([*map(Path, transcripts)], tokenizer):
        prompt = each.prompt_ids.tolist()
        texts = [
            write(cached, drafter.session(prompt), prompt, logs if way == "last" else None, count)
            for way, drafter in drafters.items()
        ]
        count["same"] += texts[0] == texts[1]
        print(dict(count), flush=True)


def unigram(store, vocab_size):
    counts = np.full(vocab_size, 0.5)
    for document in store:
        counts += np.bincount(np.asarray(document.token_ids), minlength=vocab_size)[:vocab_size]
    return np.log(counts / counts.sum())


@torch.no_grad()
def write(cached, session, prompt, logs, count):
    text, way = [*prompt], "fused" if logs is None else "last"
    tree, eos = EMPTY_TREE, cached.model.generation_config.eos_token_id
    while True:
        logits = cached.run(text, tree)
        choices = logits.argmax(-1).tolist()
        path, new = (each.tolist() for each in tree.accept(choices))
        left = NEW_TOKENS - (len(text) - len(prompt))
        path, new = path[: left - 1], new[:left]
        cached.commit(path)
        count[way, "tokens"] += len(new)
        count[way, "passes"] += 1
        session.observe_predictions(
            tree, likeliest_on_host(logits, session.num_predictions, logits.shape[-1])
        )
        session.observe(new, len(tree))
        text += new
        if len(text) - len(prompt) >= NEW_TOKENS or new[-1] == eos:
            session.finish()
            return text
        tree = session.draft(NUM_DRAFTED)
        row = logits[path[-1] + 1 if path else 0].float().numpy()
        tree = tree.limited(NUM_VERIFIED) if logs is None else ranked(tree, row - logs)


def ranked(tree, scores):
    """The likeliest nodes where siblings share their probability by the scores, too."""
    parents, tokens = tree.parents, tree.token_ids.astype(np.int64)
    paths = np.r_[tree.probs.astype(float).clip(1e-9), 1.0]
    share = (paths[:-1] / paths[parents]).clip(1e-7, 1)
    depth = np.minimum(tree.depths() - 1, 2)
    new = share * np.exp(BETAS[depth] * (scores[tokens] - scores[tokens].max()))
    whole, changed = (np.bincount(parents + 1, each, len(tree) + 1) for each in (share, new))
    new = np.minimum(new * (whole / changed.clip(1e-300))[parents + 1], 1)
    for node, parent in enumerate(parents):
        new[node] *= 1 if parent < 0 else new[parent]
    kept = np.sort(np.argsort(-new, kind="stable")[:NUM_VERIFIED])
    places = {-1: -1, **{int(node): place for place, node in enumerate(kept)}}
    above = [places[int(parents[node])] for node in kept]
    return TokenTree(tokens[kept].tolist(), above, new[kept].tolist())


if __name__ == "__main__":
    main(*sys.argv[1:])
