"""Isolation of requests in every scope and every engine's front end.

Two runs differ only in Ann's texts; Bob's drafts must be equal in both.
"""

import ctypes
import json
import os
import weakref
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specds import EngineDrafter
from specds.integrations import llama_cpp, sglang, vllm, vllm_combined
from specds.transformers import custom_generate
from stub_runner_v2 import StubRunnerV2
from vllm_shapes import WHOLE, config_of, runner_of

torch = pytest.importorskip("torch")

SCOPES = ("none", "tenant", "shared")
PHRASES = st.builds(lambda a, b: [a, b, (a + b) % 6, 6 + a], *[st.integers(0, 5)] * 2)
TEXTS = st.lists(PHRASES, min_size=2, max_size=7).map(lambda parts: [*chain(*parts)])
LENGTH = 32
# Whatever a step takes.
OPTIONS = {**WHOLE, "effort": "low"}


class OfDrafter:
    def __init__(self, scope):
        self.drafter = EngineDrafter(memory_scope=scope, vocab_size=100, **OPTIONS)

    def draft(self, rows):
        names, tenants, texts = zip(*rows, strict=True)
        options = [{"tenant": tenant} for tenant in tenants]
        self.drafter.sync([*texts], [*names], request_options=options)
        tokens, lengths, probs = self.drafter.draft_chains(4)
        rows = zip(tokens.tolist(), lengths, probs.tolist(), strict=True)
        return [([*token[:number]], prob[:number]) for token, number, prob in rows]

    def end(self, name):
        self.drafter.end([name])


class OfV1:
    def __init__(self, scope):
        self.proposer = vllm.Proposer(config_of(memory_scope=scope, **OPTIONS))
        self.names = set()

    def draft(self, rows):
        names = [name for name, _, _ in rows]
        self.proposer.runner = runner = runner_of(names)
        tokens, lengths = np.zeros((8, LENGTH), np.int32), np.zeros(8, np.int32)
        for row, (name, tenant, text) in enumerate(rows):
            extra = {"specds_tenant": tenant} if tenant else None
            runner.requests[name].sampling_params = SimpleNamespace(extra_args=extra)
            tokens[row, : len(text)], lengths[row] = text, len(text)
        drafts = self.proposer.propose([[1]] * len(rows), lengths, tokens)
        return [(draft, None) for draft in drafts]

    def end(self, name):
        pass  # the runner drops it


class OfV2:
    def __init__(self, scope):
        self.runner = StubRunnerV2(memory_scope=scope, **OPTIONS)
        self.places = self.runner.states.req_id_to_index
        self.places.clear()
        self.finished, self.num_begun = [], 0

    def draft(self, rows):
        begun = {}
        for name, tenant, _ in rows:
            if name not in self.places:
                self.places[name] = self.num_begun % 8
                self.num_begun += 1
                begun[name] = {"specds_tenant": tenant} if tenant else None
        given = [(name, text, 1) for name, _, text in rows]
        drafts, sizes = self.runner.step(given, begun=begun, finished=self.finished)
        self.finished = []
        probs = self.runner.speculator.draft_token_confidence_probs.tolist()
        rows = zip(drafts, sizes, probs, strict=False)
        return [(draft[:size], prob[:size]) for draft, size, prob in rows]

    def end(self, name):
        del self.places[name]
        self.finished.append(name)


class OfCombined:
    """A head of vLLM whose drafts depend on each row's last token alone."""

    _last_draft_probs = None

    def __init__(self, scope):
        self.vllm_config, self.device = config_of(memory_scope=scope, **OPTIONS), "cpu"
        self.model = SimpleNamespace(compute_logits=None)
        self.lengths, self.last = {}, None
        vllm_combined.CombinedProposer(self)
        # It chooses by times.
        self.specds.choice = MagicMock(skips=lambda _: False)

    def prepare_next_token_ids_padded(self, sampled, *_):
        self.last = sampled.amax(1)
        return self.last, None

    def propose(self, num_speculative_tokens):
        return (self.last[:, None] + torch.arange(1, 1 + num_speculative_tokens)) % 100

    def draft(self, rows):
        names = [name for name, _, _ in rows]
        runner = runner_of(names)
        new = []
        for name, tenant, text in rows:
            extra = {"specds_tenant": tenant} if tenant else None
            about = runner.requests[name]
            about.sampling_params = SimpleNamespace(extra_args=extra)
            start = self.lengths.setdefault(name, 0)
            about.prompt_token_ids = text[:-1] if start == 0 else None
            new.append(text[-1:] if start == 0 else text[start:])
            self.lengths[name] = len(text)
        width = max(map(len, new))
        sampled = torch.tensor([row + [-1] * (width - len(row)) for row in new])
        batch = SimpleNamespace(req_ids=names, vocab_size=100)
        is_read = torch.zeros(len(rows), dtype=torch.bool)
        self.prepare_next_token_ids_padded(sampled, runner.requests, batch, is_read)
        drafts = self.propose(num_speculative_tokens=4).tolist()
        assert self.specds.num_failures == 0
        retrieved = self.specds._retrieved.tolist()
        return [*zip(drafts, retrieved, strict=True)]

    def end(self, name):
        pass  # the runner drops it


class OfTransformers:
    """The program of `specds export-generate`, whose requests have no tenant."""

    def __init__(self, scope):
        custom_generate._shared_drafter.cache_clear()
        self.sessions, self.lengths = {}, {}

    def draft(self, rows):
        found = []
        for name, _, text in rows:
            if name not in self.sessions:
                self.sessions[name] = custom_generate.request_drafter(None, {}).session(text)
            else:
                self.sessions[name].observe(text[self.lengths[name] :])
            self.lengths[name] = len(text)
            tree = self.sessions[name].draft(4)
            found.append((tree.best_chain().token_ids.tolist(), tree.probs.tolist()))
        return found

    def end(self, name):
        self.sessions.pop(name).finish()


class RowOfC(ctypes.Structure):
    """`specds_row` of the library for C."""

    _fields_ = (
        ("slot", ctypes.c_uint32),
        ("max_tokens", ctypes.c_uint32),
        ("generation", ctypes.c_uint64),
        ("tokens", ctypes.POINTER(ctypes.c_uint32)),
        ("num_tokens", ctypes.c_size_t),
        ("start", ctypes.c_size_t),
        ("options", ctypes.c_char_p),
        ("min_prob", ctypes.c_float),
    )


class OfC:
    """The library for C as llama-server calls it: requests are generations of slots."""

    def __init__(self, scope):
        self.library = library = ctypes.CDLL(str(LIBRARY))
        library.specds_open.restype = ctypes.c_void_p
        options = json.dumps({"memory_scope": scope, **OPTIONS}).encode()
        given = ctypes.c_uint32(100), None, ctypes.c_bool(False), None, ctypes.c_size_t(0)
        self.drafter = ctypes.c_void_p(library.specds_open(options, *given))
        assert self.drafter.value
        self.places, self.num_begun, self.texts = {}, 0, {}
        weakref.finalize(self, library.specds_close, self.drafter)

    def draft(self, rows):
        for name, _, _ in rows:
            if name not in self.places:
                self.places[name] = (self.num_begun % 8, self.num_begun)
                self.num_begun += 1
        about, kept = (RowOfC * len(rows))(), []
        for row, (name, tenant, text) in zip(about, rows, strict=True):
            slot, generation = self.places[name]
            tokens = (ctypes.c_uint32 * len(text))(*text)
            kept.append(tokens)
            self.texts[name] = tokens
            given = json.dumps({"specds_tenant": tenant}) if tenant else "{}"
            row.slot, row.generation, row.max_tokens = slot, generation, 4
            row.tokens, row.num_tokens, row.start = tokens, len(text), 0
            row.options, row.min_prob = given.encode(), -1.0
        size = len(rows) * 4
        ids, lengths = (ctypes.c_uint32 * size)(), (ctypes.c_size_t * len(rows))()
        sizes = map(ctypes.c_size_t, (len(rows), 4))
        call = self.library.specds_draft
        assert call(self.drafter, about, *sizes, ids, ctypes.c_size_t(size), lengths) == 0
        return [([*ids[4 * row : 4 * row + length]], None) for row, length in enumerate(lengths)]

    def end(self, name):
        slot, generation = self.places.pop(name)
        given = ctypes.c_uint32(slot), ctypes.c_uint64(generation), None, ctypes.c_size_t(0)
        assert self.library.specds_end(self.drafter, *given) == 0


class OfSglang:
    def __init__(self, scope):
        self.corpus = sglang.SpecdsCorpus(
            {"memory_scope": scope, "effort": "low"}, 5, vocab_size=100
        )

    def draft(self, rows):
        requests = [
            SimpleNamespace(
                rid=name,
                sampling_params=SimpleNamespace(
                    custom_params={"specds_tenant": tenant} if tenant else None
                ),
                **dict.fromkeys(("extra_key", "lora_id", "cache_salt", "grammar")),
            )
            for name, tenant, _ in rows
        ]
        self.corpus.begin(requests)
        names, _, texts = zip(*rows, strict=True)
        tokens, mask = self.corpus.batch_get(names, [*texts], [len(text) for text in texts])
        trees = zip(tokens.reshape(-1, 5), mask.reshape(-1, 5, 5), strict=True)
        return [(path(*tree), [part.tolist() for part in tree]) for tree in trees]

    def end(self, name):
        self.corpus.erase_match_state([name])


class OfLlama:
    """One sequence after the other, without tenants."""

    def __init__(self, scope):
        self.model = llama_cpp.DraftModel({"memory_scope": scope, **OPTIONS}, 4, vocab_size=100)

    def draft(self, rows):
        return [(self.model(np.array(text, np.intc)).tolist(), None) for _, _, text in rows]

    def end(self, name):
        pass


def path(tokens, mask):
    """Return the first path of a tree."""
    found = [0]
    for node in range(1, len(tokens)):
        if mask[node, found].all() and mask[node].sum() == len(found) + 1:
            found.append(node)
    return tokens[found[1:]].tolist()


FRONTS = {
    "drafter": OfDrafter,
    "vllm": OfV1,
    "vllm_v2": OfV2,
    "combined": OfCombined,
    "sglang": OfSglang,
    "llama": OfLlama,
    "transformers": OfTransformers,
    "c": OfC,
}
LIBRARY = Path(__file__).parents[2] / "target/release/libspecds.so"


needs_library = pytest.mark.skipif(
    not LIBRARY.exists(), reason="needs `cargo build --release -p specds-c`"
)
of_fronts = pytest.mark.parametrize(
    "front", [pytest.param(name, marks=needs_library if name == "c" else ()) for name in FRONTS]
)


def drafts_of_bob(front, requests, ann, bob):
    """Serve a text of Ann and one of Bob at a time, and return all of Bob's drafts."""
    found = []
    for number, (hers, his) in enumerate(requests):
        texts = {f"a{number}": (ann, hers), f"b{number}": (bob, his)}
        lengths = dict.fromkeys(texts, 4)
        # A `Llama` has one sequence at a time.
        for order in [[name] for name in texts] if isinstance(front, OfLlama) else [[*texts]]:
            while order:
                rows = [(name, texts[name][0], texts[name][1][: lengths[name]]) for name in order]
                for name, draft in zip([*order], front.draft(rows), strict=True):
                    _, text = texts[name]
                    if name[0] == "b":
                        found.append(draft)
                    rest = text[lengths[name] :]
                    pairs = zip(draft[0], rest, strict=False)
                    accepted = next((n for n, (a, b) in enumerate(pairs) if a != b), len(draft[0]))
                    lengths[name] += min(accepted, len(rest)) + 1
                    if lengths[name] > len(text):
                        front.end(name)
                        order.remove(name)
    return found


def tenants_of(scope, is_named):
    """Return the names of two tenants; requests without a name share a memory in one scope."""
    return ("ann", "bob") if is_named else ("ann", "") if scope == "shared" else ("", "")


@of_fronts
@settings(max_examples=int(os.environ.get("RUNS", "8")), deadline=None)
@given(
    st.lists(st.tuples(TEXTS, TEXTS, TEXTS), min_size=1, max_size=3),
    st.sampled_from(SCOPES),
    st.booleans(),
)
def test_drafts_do_not_depend_on_requests_of_others(front, requests, scope, is_named):
    if front in ("llama", "transformers") and scope == "shared":
        return  # declared to be of one tenant
    ann, bob = tenants_of(scope, is_named)
    # In one run Bob repeats Ann's texts, so that any trace of them is used.
    runs = [
        drafts_of_bob(FRONTS[front](scope), [(her[which], her[2]) for her in requests], ann, bob)
        for which in (0, 2)
    ]
    assert runs[0] == runs[1]


@of_fronts
def test_drafts_depend_on_earlier_requests_of_the_same_tenant(front):
    """Control: the test above can fail."""
    if front == "transformers":
        pytest.skip("its requests have no tenant, and so no memory")
    text = [1, 2, 3, 7, 9, 4, 8, 5, 6, 11, 10]
    requests = [(text, [20 + token for token in text]), ([50, 51, 52, 53, 54], text)]
    others = [([60, 61, 62, 63, 64], requests[0][1]), requests[1]]
    scope, name = ("shared", "") if front == "llama" else ("tenant", "bob")
    runs = [drafts_of_bob(FRONTS[front](scope), given, name, name) for given in (requests, others)]
    assert runs[0] != runs[1]
