"""A trained head beside retrieval: tokens a pass of either and of one tree of both, live.

    python benches/head/measure.py HEAD.pt --datastore DEMO.specds --nodes 16 --ways fused tree rank

The prompts are those of `specds bench generate --model demo`, 96 new tokens each, one core. Texts
are those of plain decoding, sampled ones too but where the head's samples are proposals.
"""

import argparse
import time
import zlib
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
import torch
from layer import KEYS, SIZE, Head
from torch.nn.functional import scaled_dot_product_attention

from specds import Datastore, FusedDrafter, Memory, Session, TokenTree
from specds.accept.draws import draw
from specds.bench.generation.measure import (
    Plan,
    Target,
    Way,
    baseline_way,
    batches_of,
    measure,
    own_calls,
)
from specds.demo import prompts
from specds.drafters.session import EMPTY_TREE, RequestRules
from specds.hierarchy.draft import Draft, Drawn, Threshold, suggestion
from specds.loading import load_model
from specds.stats import LevelStats

NUM_READ, LEAST = 32, 0.01  # nodes of retrieval that are read, the least probability of its own


class Cached:
    """The head with the keys and values of a text: what is beyond it is a draft's."""

    def __init__(self, head, embedding):
        self.head, self.embedding = head, embedding
        self.keys, self.values = (torch.zeros(KEYS, 1024, SIZE) for _ in range(2))
        self.length = 0  # of the text

    def run(self, features, tokens, positions, first, mask):
        """Features that follow; entries go to `first` and on; the mask is over all entries."""
        x, q, k, v = self.head.enter(features, self.embedding[tokens], positions)
        end = first + len(tokens)
        self.keys[:, first:end], self.values[:, first:end] = k.transpose(0, 1), v.transpose(0, 1)
        mixed = scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            self.keys[None, :, :end],
            self.values[None, :, :end],
            attn_mask=mask,
            enable_gqa=True,
        )
        return self.head.leave(x, mixed[0].transpose(0, 1).flatten(-2))

    def read(self, features, tokens):
        """Appends to the text; returns the feature after its last token."""
        n, m = self.length, len(tokens)
        mask = torch.ones(m, n + m, dtype=torch.bool).tril(n)
        found = self.run(features, tokens, torch.arange(n, n + m), n, mask)
        self.length += m
        return found[-1]


class HeadSession(Session):
    """One request, alone on its model.

    `way` is `chain` or `tree` (the head alone), `suggest` (the head's tree is suggested to the
    fused drafter), `rank` (it reads the retrieved tree instead), `read` (both), or `chains` and
    `sampled` (where the target samples: a chain of samples, alone or joined with retrieval).
    """

    def __init__(self, drafter, prompt_ids):
        self.d, self.stats = drafter, LevelStats()
        self.inner = drafter.fused.session(prompt_ids) if drafter.fused else None
        self.cached = Cached(drafter.head, drafter.embedding)
        self.tree, self.rules, self.proposed = EMPTY_TREE, None, {}
        with torch.inference_mode():
            ids = torch.tensor(np.asarray(prompt_ids, dtype=np.int64))[None]
            features = drafter.model.model(input_ids=ids, use_cache=False).last_hidden_state[0]
            self.cached.read(features[:-1], ids[0, 1:])
            self.first = features[-1:]  # the prefill keeps no more than the last token's
        self.root = None

    @property
    def proposes(self):
        return self.d.way in ("chains", "sampled") and bool(self.rules and self.rules.do_sample)

    @property
    def proposals(self):
        return self.proposed

    @property
    def level_stats(self):
        return {"head": self.stats}

    @property
    def num_predictions(self):
        return self.inner.num_predictions if self.inner else 0

    def observe_predictions(self, tree, predictions):
        if self.inner:
            self.inner.observe_predictions(tree, predictions)

    def begin(self, rules: RequestRules):
        self.rules = rules

    def finish(self):
        if self.inner:
            self.inner.finish()

    @torch.inference_mode()
    def observe(self, token_ids, num_verified=None):
        tokens = [int(token) for token in token_ids]
        if self.root is None:
            features = self.first
        else:
            path = self.tree.follow(tokens)
            features = self.d.captured[[0, *(1 + node for node in path)]][: len(tokens)]
        started = time.perf_counter()
        self.root = self.cached.read(features, torch.tensor(tokens))
        self.stats.num_forwards += 1
        self.stats.seconds += time.perf_counter() - started
        if self.inner:
            self.inner.observe(tokens, num_verified)
        self.tree = EMPTY_TREE

    def probs(self, features):
        logits = (features @ self.d.embedding.T).float()
        if self.rules is not None:
            logits = self.rules.logits_processor(
                torch.zeros(len(logits), 1, dtype=torch.int64), logits
            )
        return torch.softmax(logits, -1)

    @torch.inference_mode()
    def draft(self, max_nodes, max_depth=None, min_prob=0.0):
        most = max_nodes if max_depth is None else min(max_nodes, max_depth)
        self.tree, self.proposed, way = EMPTY_TREE, {}, self.d.way
        if most <= 0:
            return self.tree
        if self.proposes:
            self.tree = self.sampled(max_nodes, min(most, self.d.depth))
        elif way in ("chain", "chains"):
            self.tree = self.grow(EMPTY_TREE, min(most, self.d.depth), 1)[0]
        elif way == "tree":
            tree, probs = self.grow(EMPTY_TREE, min(most, self.d.depth), self.d.width)
            tokens, parents, shares = suggestion(probs, tree)
            self.tree = whole(tokens, parents, shares).limited(max_nodes, most)
        else:
            retrieved = EMPTY_TREE
            if way != "suggest":
                retrieved = self.inner.draft(NUM_READ, self.d.depth)
            tree, probs = self.grow(retrieved, self.d.depth, 0 if way == "rank" else self.d.width)
            self.inner.suggest(*suggestion(probs, tree))
            self.tree = self.inner.draft(max_nodes, most)
        return self.tree

    def grow(self, given, depth, width):
        """The head's likeliest nodes and all given ones, level by level; what it says of each."""
        started = time.perf_counter()
        c, n0 = self.cached, self.cached.length
        tokens, parents, ancestors, paths = [], [], [], []  # of the nodes so far
        features, dists = [self.root[None]], [self.probs(self.root[None])]
        number = {-1: -1}  # of given nodes
        by_depth = {}
        for node, d in enumerate(given.depths().tolist() if len(given) else []):
            by_depth.setdefault(d, []).append(node)
        level = [-1]
        for d in range(1, 1 + max([depth, *by_depth])):
            wanted = []
            for node in by_depth.get(d, ()):
                parent, token = number[int(given.parents[node])], int(given.token_ids[node])
                number[node] = len(tokens) + len(wanted)
                wanted.append((parent, token))
            if d <= depth and width:
                likely = dists[-1].topk(width)
                own = [
                    ((1.0 if parent < 0 else paths[parent]) * p, parent, t)
                    for parent, ts, ps in zip(
                        level, likely.indices.tolist(), likely.values.tolist(), strict=True
                    )
                    for t, p in zip(ts, ps, strict=True)
                ]
                best = sorted(own, reverse=True)[:width]
                wanted += [
                    (parent, t)
                    for p, parent, t in best
                    if (p >= LEAST or width == 1) and (parent, t) not in wanted
                ]
            if not wanted:
                break
            above = torch.cat(features)[[1 + parent for parent, _ in wanted]]
            first = len(tokens)
            dist = torch.cat(dists)
            for parent, token in wanted:
                paths.append(
                    (1.0 if parent < 0 else paths[parent]) * float(dist[1 + parent, token])
                )
                ancestors.append([*(ancestors[parent] if parent >= 0 else ()), len(tokens)])
                tokens.append(token)
                parents.append(parent)
            mask = torch.zeros(len(wanted), n0 + len(tokens), dtype=torch.bool)
            mask[:, :n0] = True
            for row, chain in enumerate(ancestors[first:]):
                mask[row, [n0 + a for a in chain]] = True
            positions = torch.full((len(wanted),), n0 + d - 1)
            found = c.run(above, torch.tensor(tokens[first:]), positions, n0 + first, mask)
            self.stats.num_forwards += 1
            features.append(found)
            dists.append(self.probs(found))
            level = [*range(first, len(tokens))]
        self.stats.num_drafted += len(tokens)
        tree = TokenTree(tokens, parents, np.minimum(paths, 1.0)) if tokens else EMPTY_TREE
        self.stats.seconds += time.perf_counter() - started
        return tree, torch.cat(dists)

    def sampled(self, max_nodes, most):
        """A chain of samples, until it is unlikely; retrieved branches join it."""
        started = time.perf_counter()
        c, n0, chosen, feature, sure = self.cached, self.cached.length, [], self.root[None], 1.0
        while len(chosen) < most and sure > 0.05:
            probs = self.probs(feature)[0]
            chosen.append(Drawn.of(draw(probs), probs))
            sure *= float(probs.max())
            if len(chosen) == most:
                break
            place = n0 + len(chosen) - 1
            mask = torch.ones(1, place + 1, dtype=torch.bool)
            feature = c.run(
                feature, torch.tensor([chosen[-1].token_id]), torch.tensor([place]), place, mask
            )
            self.stats.num_forwards += 1
        draft = Draft.of_chain(chosen, True, Threshold(), self.stats)
        self.stats.seconds += time.perf_counter() - started
        if self.d.way == "sampled":
            draft = draft.joined_with(self.inner.draft(max_nodes, most), max_nodes)
        self.proposed = draft.proposals
        return draft.tree


def whole(tokens, parents, shares):
    """The tree in the order of its paths' probabilities, each prefix of which is a tree."""
    paths = []
    for parent, share in zip(parents, shares, strict=True):
        paths.append(share * (1.0 if parent < 0 else paths[parent]))
    order = sorted(range(len(tokens)), key=lambda i: (-paths[i], i))
    place = {-1: -1, **{node: at for at, node in enumerate(order)}}
    return TokenTree(
        [tokens[i] for i in order],
        [place[parents[i]] for i in order],
        np.minimum([paths[i] for i in order], 1),
    )


@dataclass
class HeadDrafter:
    model: object
    head: Head
    way: str
    fused: object = None
    depth: int = 8
    width: int = 4

    def __post_init__(self):
        self.embedding, self.captured = self.model.lm_head.weight.detach(), None
        self.handle = self.model.lm_head.register_forward_pre_hook(self.take)
        self.vocab_size, self.max_nodes = len(self.embedding), None

    def take(self, _, inputs):
        self.captured = inputs[0][0].clone()

    def session(self, prompt_ids):
        return HeadSession(self, prompt_ids)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("head")
    parser.add_argument("--datastore")
    parser.add_argument("--limit", type=int, default=60)
    parser.add_argument("--nodes", type=int, nargs="+", default=[16, 32])
    parser.add_argument("--ways", nargs="+", default=["fused", "chain", "tree", "suggest", "read"])
    parser.add_argument("--modes", nargs="+", default=["greedy"])
    parser.add_argument("--no-plain", action="store_true")
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--width", type=int, default=4)
    a = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = load_model("demo", device="cpu")
    head = Head().eval()
    head.load_state_dict(torch.load(a.head))
    head.requires_grad_(False)
    store = a.datastore and Datastore(a.datastore)

    def made(way):
        if way in ("chain", "tree", "chains"):
            return HeadDrafter(model, head, way, None, a.depth, a.width)
        fused = FusedDrafter(store) if store else FusedDrafter(memory=Memory(len(tokenizer)))
        return fused if way == "fused" else HeadDrafter(model, head, way, fused, a.depth, a.width)

    target = Target(model)
    ways = [baseline_way("plain", target)] * (not a.no_plain) + [
        Way(
            f"{way} {nodes}",
            partial(own_calls, target, partial(made, way), nodes),
            is_ours=True,
            max_nodes=nodes,
        )
        for way, nodes in product(a.ways, a.nodes)
    ]
    sampled = {"do_sample": True, "top_k": 0, "top_p": 1.0, "max_new_tokens": 96}
    modes = {
        name: {"do_sample": False, "max_new_tokens": 96}
        if name == "greedy"
        else {**sampled, "temperature": float(name)}
        for name in a.modes
    }
    chosen = [tokenizer(each.text)["input_ids"] for each in prompts(a.limit, seed=0)]
    cells = measure(Plan(target, ways, modes, {1: batches_of(chosen, 1)}, 1, 0, True))
    for cell in cells:
        report(cell, [other for other in cells if other.mode == cell.mode])


def report(cell, beside):
    run, (tokens, passes) = cell.runs[0], counts(cell)
    stats, number = run.stats, max(run.stats.num_drafts, 1)
    differing = sum(x != y for x, y in zip(run.texts, beside[0].runs[0].texts, strict=True))
    print(
        f"{cell.mode:6} {cell.way.name:12} {tokens.sum() / passes.sum():.3f} tokens a pass "
        f"({se(tokens, passes):.3f}), crc {zlib.crc32(repr(run.texts).encode()):08x}, "
        f"{differing} differ"
    )
    for other in beside:
        if other is not cell and other.way.max_nodes == cell.way.max_nodes:
            theirs = counts(other)
            ratio = tokens.sum() / passes.sum() * theirs[1].sum() / theirs[0].sum()
            print(f"    over {other.way.name} {ratio:.3f} ({se(tokens, passes, *theirs):.3f})")
    for name in ("forward_s", "draft_s", "observe_s"):
        print(f"    {name} {1e3 * getattr(stats, name) / number:.2f} ms a pass")
    if level := stats.levels.get("head"):
        each = 1e3 * level.seconds / max(level.num_forwards, 1)
        print(f"    {level.num_forwards / number:.2f} steps of the head, {each:.2f} ms each")


def counts(cell):
    """Tokens and passes of each request, the prefill's included."""
    run = cell.runs[0]
    passes = [1.0 + result.stats.num_drafts for result in run.results]
    return np.array([float(len(text)) for text in run.texts]), np.array(passes)


def se(*arrays):
    """The jackknife's standard error of a / b, or of a / b over c / d, over requests."""
    found = []
    for left_out in range(len(arrays[0])):
        a, b, *other = (of.sum() - of[left_out] for of in arrays)
        found.append(a / b * (other[1] / other[0] if other else 1.0))
    return (len(found) - 1) ** 0.5 * np.std(found)


if __name__ == "__main__":
    main()
