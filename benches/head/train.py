"""Trains a head for the demo's main model, as EAGLE and HASS do: six steps of its own features.

    python benches/head/train.py OUT.pt --seconds 1500

Half of the rows are the target's own continuations of library code (greedy, T = 0.7 and T = 1),
half are the library itself, without the held-out modules. The loss is the cross entropy with the
target's distribution and the distance to its features. Prints, every hundred steps, how often each
step's likeliest token is the target's in greedy texts of held-out prompts.
"""

import argparse
import math
import random
import time
from pathlib import Path

import numpy as np
import torch
from layer import HEADS, KEYS, SIZE, Head
from torch.nn import functional

from specds.corpora import stdlib_documents
from specds.demo import HELD_OUT, prompts
from specds.loading import load_model

STEPS, ROWS, LENGTH, ROOTS, PROMPT = 6, 12, 288, 40, 160
OWN_SETTINGS = [
    {"do_sample": False},
    {"do_sample": True, "temperature": 0.7, "top_k": 0},
    {"do_sample": False},
    {"do_sample": True, "temperature": 1.0, "top_k": 0},
]


def own_texts(model, tokenizer, num_batches):
    """Continuations of prompts cut as the demo's are: rows of LENGTH tokens."""
    rng, cuts, rows = random.Random(0), [], []
    for document in stdlib_documents(without=HELD_OUT):
        lines = document.text.splitlines(keepends=True)
        ends = [
            number
            for number, line in enumerate(lines, 1)
            if line.lstrip().startswith("def ") and line.rstrip().endswith(":") and number > 20
        ]
        for end in rng.sample(ends, min(len(ends), 12)):
            text = "".join(lines[max(0, end - 60) : end]).rstrip("\n")[-1100:]
            ids = tokenizer(text)["input_ids"][-PROMPT:]
            cuts += [ids] * (len(ids) == PROMPT)
    rng.shuffle(cuts)
    for batch in range(num_batches):
        some = torch.tensor(cuts[batch * 64 : (batch + 1) * 64])
        rows.append(continued(model, some, **OWN_SETTINGS[batch % 4]))
    return torch.cat(rows).numpy().astype(np.uint16)


def continued(model, ids, **settings):
    number = LENGTH - ids.shape[1]
    given = {"max_new_tokens": number, "min_new_tokens": number, "pad_token_id": 0}
    return model.generate(ids, attention_mask=torch.ones_like(ids), **given, **settings)


def unroll(head, model, ids, roots, wide, steps):
    """By step: the head's features, the target's, and the places of their tokens, at the roots.

    The first step reads the target's features everywhere; a later one at a root reads the head's
    own of the step before, and sees the first step's keys up to the root and its own since.
    """
    with torch.no_grad():
        features = model.model(input_ids=ids, use_cache=False).last_hidden_state
    embedded = functional.embedding(ids, model.lm_head.weight)
    places = torch.arange(ids.shape[1] - 1)
    x, q, first_k, first_v = head.enter(
        features[:, :-1], embedded[:, 1:], places.expand(len(ids), -1)
    )
    attended = functional.scaled_dot_product_attention(
        *(of.transpose(1, 2) for of in (q, first_k, first_v)), is_causal=True, enable_gqa=True
    )
    own = head.leave(x, attended.transpose(1, 2).flatten(-2))
    yield at(own, wide), at(features, wide + 1), wide + 1
    own, keys, values = at(own, roots), [], []
    unseen = (places > roots[..., None])[:, None, None]
    for step in range(2, steps + 1):
        x, q, k, v = head.enter(own, at(embedded, roots + step), roots + step - 1)
        keys.append(k)
        values.append(v)
        q = q.unflatten(2, (KEYS, HEADS // KEYS))
        far = torch.einsum("brkgd,btkd->bkgrt", q, first_k).masked_fill(unseen, -1e9)
        near = torch.einsum("brkgd,brskd->bkgrs", q, torch.stack(keys, 2))
        shares = torch.softmax(torch.cat((far, near), -1) / math.sqrt(SIZE), -1)
        attended = torch.einsum("bkgrt,btkd->brkgd", shares[..., : len(places)], first_v)
        attended = attended + torch.einsum(
            "bkgrs,brskd->brkgd", shares[..., len(places) :], torch.stack(values, 2)
        )
        own = head.leave(x, attended.flatten(2))
        yield own, at(features, roots + step), roots + step


def at(of, places):
    return of.gather(1, places[..., None].expand(-1, -1, of.shape[-1]))


def loss_of(head, model, ids, roots, wide):
    total, told = 0.0, []
    for step, (own, features, _) in enumerate(unroll(head, model, ids, roots, wide, STEPS)):
        with torch.no_grad():
            target = torch.softmax(model.lm_head(features), -1)
        logs = torch.log_softmax(own @ model.lm_head.weight.T, -1)
        entropy = -(target * logs).sum(-1).mean()
        total = total + 0.9**step * (entropy + functional.smooth_l1_loss(own, features))
        told.append(entropy.item())
    return total, told


@torch.no_grad()
def accuracy(head, model, held_out):
    """By step, how often the target's token is the likeliest; the mean tokens of a chain of 8."""
    roots = torch.arange(PROMPT - 1, LENGTH - 9, 2).expand(len(held_out), -1)
    found, alive, length = [], 1, 0.0
    for own, _, places in unroll(head, model, held_out, roots, roots, 8):
        hits = (own @ model.lm_head.weight.T).argmax(-1) == held_out.gather(1, places + 1)
        alive = hits * alive
        found.append(round(hits.float().mean().item(), 3))
        length += alive.float().mean().item()
    return found, round(length, 2)


def batches(own, library, rng):
    while True:
        rows = own[rng.integers(0, len(own), ROWS // 2)]
        starts = rng.integers(0, len(library) - LENGTH, ROWS - ROWS // 2)
        rows = np.concatenate((rows, [library[start : start + LENGTH] for start in starts]))
        firsts = [PROMPT - 4] * (ROWS // 2) + [16] * (ROWS - ROWS // 2)
        last = LENGTH - STEPS - 1
        roots = [rng.choice(np.arange(first, last), ROOTS, replace=False) for first in firsts]
        wide = [rng.choice(np.arange(16, last), 2 * ROOTS, replace=False) for _ in firsts]
        yield map(torch.from_numpy, (rows.astype(np.int64), np.stack(roots), np.stack(wide)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=1500)
    parser.add_argument("--init", type=Path)
    parser.add_argument("--rate", type=float, default=1.0)
    parser.add_argument("--own", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, tokenizer = load_model("demo", device="cpu")
    model.requires_grad_(False)
    own = np.load(options.own) if options.own else own_texts(model, tokenizer, 28)
    texts = [document.text for document in stdlib_documents(without=HELD_OUT)]
    library = np.concatenate(
        [np.array([*ids, 0], np.uint16) for ids in tokenizer(texts)["input_ids"]]
    )
    ids = [tokenizer(each.text)["input_ids"][-PROMPT:] for each in prompts(60)]
    held_out = continued(
        model, torch.tensor([of for of in ids if len(of) == PROMPT]), do_sample=False
    )
    head = Head()
    if options.init:
        head.load_state_dict(torch.load(options.init))
    matrices = [of for of in head.parameters() if of.ndim == 2]
    others = [of for of in head.parameters() if of.ndim != 2]
    optimizers = [
        torch.optim.Muon(matrices, lr=0.02, weight_decay=0.05, momentum=0.95),
        torch.optim.AdamW(others, lr=4e-3, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    groups = [(group, group["lr"]) for of in optimizers for group in of.param_groups]
    started, told = time.time(), []
    for step, batch in enumerate(batches(own, library, np.random.default_rng(0)), 1):
        left = 1 - (time.time() - started) / options.seconds
        if left <= 0:
            break
        for group, rate in groups:
            group["lr"] = options.rate * rate * min(1, step / 50) * min(1, left / 0.7)
        loss, entropies = loss_of(head, model, *batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        told.append(entropies)
        if step % 100 == 0:
            print(
                step, np.mean(told[-100:], 0).round(3), *accuracy(head, model, held_out), flush=True
            )
    print(step, *accuracy(head, model, held_out))
    torch.save(head.state_dict(), options.out)


if __name__ == "__main__":
    main()
