"""Requests of many tenants, a third of them hostile, through the adapter of engines in one process.

The engine here is the replay of known texts: it accepts the drafted tokens that a text has, and
adds one. Each request that is not hostile must end with its whole text, and drafts must not become
rarer; nothing may raise out of a step, and the memory of the process must not grow.
"""

import gc
import logging
import os
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from time import process_time
from types import SimpleNamespace

import numpy as np
import xgrammar

from specds.constraints import constraint_of_engine
from specds.integrations.adapter import Adapter, guarded, parse_request_options

NUM_REQUESTS = int(os.environ.get("REQUESTS", "100000"))
NUM_ROWS = 9
NUM_PARTS = 10
VOCAB_SIZE = 300
MAX_NODES = 8
_BYTES = [b"</s>"] + [bytes([byte]) for byte in range(256)]
_WORDS = _BYTES + [b"<%d>" % number for number in range(VOCAB_SIZE - len(_BYTES))]
_LINKED = """{"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}"""
_LONG = "x" * 100_000


class MixedServer(Adapter):
    has_tenants = True

    @guarded(lambda _, rows, *__: [[] for _ in rows])
    def propose(self, rows, names, grammars, num_left):
        self.sync(rows, names)
        with self.timed_draft():
            self.choose_allowed(grammar and grammar() for grammar in grammars)
            return self.chains(num_left)


class Slow:
    """A grammar of which each question takes ten times what a row may take."""

    ended = False

    def ahead(self):
        end = process_time() + 0.02
        while process_time() < end:
            pass
        return []

    def push(self, token):
        return True

    def pop(self, count):
        pass


class Raising(Slow):
    def ahead(self):
        raise RuntimeError("a grammar that fails")


def grammars():
    """Return functions that begin a grammar: what the engine holds of a request."""
    about = xgrammar.TokenizerInfo(_WORDS, stop_token_ids=[0])
    compiler = xgrammar.GrammarCompiler(about, max_threads=1)
    compiled = {
        "endless text": compiler.compile_grammar('root ::= "ab" root'),
        "endless list": compiler.compile_json_schema(_LINKED, any_whitespace=False),
        "forced text of 100 kB": compiler.compile_json_schema(f'{{"const": "{_LONG}"}}'),
        "many texts": compiler.compile_regex("|".join(f"{n * n}v" for n in range(800))),
    }

    def begin(of):
        return SimpleNamespace(ctx=of, matcher=xgrammar.GrammarMatcher(of))

    return {name: lambda of=of: begin(of) for name, of in compiled.items()}


_ODD = [
    {"specds_tenant": "\ud800"},
    {"specds_tenant": "x" * 100_000},
    {"specds_group": "\0"},
    {"specds_tenant": {"x": [1]}},
    {"specds_group": 1e400},
    {"specds_unknown": 3},
    {"specds_off": "perhaps"},
    {"specds_predicted_output": [True, False]},
    {"specds_predicted_output": [[1], [2]]},
    {"specds_predicted_output": [2**32 - 1] * 9},
    {"specds_predicted_output": [float("nan")]},
    {"specds_predicted_output": "text"},
]


class MixedRequest:
    def __init__(self, name, kind, text, extra=None, grammar=None):
        self.name, self.kind, self.text = name, kind, text
        self.length, self.extra = 24, extra
        self.engine_grammar = grammar() if callable(grammar) else None
        self.constraint = grammar if grammar is not None and not callable(grammar) else None

    def grammar(self):
        if self.engine_grammar is None:
            return self.constraint
        return constraint_of_engine(self.engine_grammar)

    def write(self, draft):
        """Accept the draft's right tokens and add one; return how many were right."""
        rest = self.text[self.length :]
        right = 0
        while right < min(len(draft), len(rest) - 1) and draft[right] == rest[right]:
            right += 1
        if self.engine_grammar is not None:
            for token in rest[: right + 1]:
                if not self.engine_grammar.matcher.accept_token(int(token)):
                    self.engine_grammar = None  # the engine ends it
                    self.text = self.text[: self.length + right + 1]
                    break
        self.length += right + 1
        return right


def requests(rng, prompts):
    """Yield requests: two of three repeat texts of their tenant, the others are hostile."""
    begun = grammars()
    number, ab = 0, np.array([1 + ord(letter) for letter in "ab" * 40], np.uint32)
    texts = {
        "endless text": ab,
        "endless list": np.array([1 + byte for byte in b'{"next": ' * 9], np.uint32),
        "forced text of 100 kB": np.array([1 + ord('"'), *[1 + ord("x")] * 70], np.uint32),
        "many texts": np.array([1 + byte for byte in b"250000v"], np.uint32),
    }
    while True:
        number += 1
        name, text = f"r{number}", prompts[rng.randrange(len(prompts))]
        tenant = {"specds_tenant": f"t{rng.randrange(100)}"}
        kind = rng.choice(["good"] * 20 + ["grammar"] * 2 + [
            "prediction", "odd option", "bad ids", "long context", "no context", "rolled back",
            "preempted", "aborted", "slow grammar", "raising grammar", "odd name"])  # fmt: skip
        if kind == "good":
            friend = rng.randrange(40)  # a tenant whose twelve texts repeat
            text = prompts[12 * friend + rng.randrange(12)]
            yield MixedRequest(name, kind, text, {"specds_tenant": f"friend {friend}"})
        elif kind == "grammar":
            which = rng.choice([*begun])
            whole = np.concatenate([text[:24], texts[which]])
            yield MixedRequest(name, which, whole, tenant, begun[which])
        elif kind == "prediction":
            ids = (text.tolist() * 6000)[: (1 << 18) + rng.randrange(-9, 9)]
            ids = ids if rng.random() < 0.1 else ids[:99]
            yield MixedRequest(name, kind, text, tenant | {"specds_predicted_output": ids})
        elif kind == "odd option":
            yield MixedRequest(name, kind, text, rng.choice(_ODD))
        elif kind == "bad ids":
            yield MixedRequest(name, kind, text + rng.choice([VOCAB_SIZE, 2**31 - 1]), tenant)
        elif kind in ("slow grammar", "raising grammar"):
            yield MixedRequest(name, kind, text, tenant, {"s": Slow, "r": Raising}[kind[0]]())
        elif kind == "odd name":
            odd = ["", "\0", "x" * 100_000, "é" * 9][number % 4]
            yield MixedRequest(odd + name, kind, text, tenant)
        else:
            yield MixedRequest(name, kind, text, tenant)


def resident():
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmRSS")).split()[1]) / 1024


def serve(num_requests):
    """Serve requests and return the counts of each tenth."""
    logging.getLogger("specds").setLevel(logging.CRITICAL)
    rng = random.Random(0)
    draws = np.random.default_rng(0)
    prompts = [draws.integers(1, VOCAB_SIZE, 64).astype(np.uint32) for _ in range(500)]
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "memory_scope": "tenant",
            "memory_bytes": 64 << 20,
            "snapshot": str(Path(folder, "memory")),
            "sync_interval": 1.0,
            "step_cost": "ignored",
            "min_prob": 0.1,
        }
        server = MixedServer(options, MAX_NODES, vocab_size=VOCAB_SIZE, tokenizer=None)
        come = requests(rng, prompts)
        rows, away, parts, counts = [], [], [], Counter()
        num_begun, begun_at = 0, process_time()
        while len(parts) < NUM_PARTS:
            while len(rows) < NUM_ROWS:
                request = next(come)
                num_begun += 1
                counts["raising"] += request.kind == "raising grammar"
                server.request_options[request.name] = parse_request_options(request.extra)
                rows.append(request)
            step(server, rows, counts, rng)
            for request in [*rows]:
                if request.length >= len(request.text) or (
                    request.kind == "aborted" and rng.random() < 0.3
                ):
                    rows.remove(request)
                    counts["ended"] += 1
                    counts["ended well"] += request.kind == "good"
                    server.request_options.pop(request.name, None)
                    if rng.random() < 0.5:  # other engines let them vanish
                        server.drafter.end([request.name])
                elif request.kind == "preempted" and rng.random() < 0.1:
                    rows.remove(request)
                    away.append((rng.randrange(2, 80), request))
            waiting = [(left - 1, request) for left, request in away]
            away = [pair for pair in waiting if pair[0] > 0]
            rows += [request for left, request in waiting if left <= 0]
            if counts["ended"] >= (len(parts) + 1) * num_requests / NUM_PARTS:
                gc.collect()
                counts["failures"], counts["limited"] = server.num_failures, server.num_limited
                spent = process_time() - begun_at
                about = {"rss": resident(), "seconds": spent, "open": len(rows) + len(away)}
                parts.append(dict(counts) | about | {"begun": num_begun})
                print(parts[-1], file=sys.stderr, flush=True)
        server.drafter.close()
    return parts


def step(server, rows, counts, rng):
    contexts = []
    for request in rows:
        if request.kind == "rolled back" and rng.random() < 0.1:
            request.length = max(24, request.length - 3)
        context = request.text[: request.length]
        if request.kind == "no context" and rng.random() < 0.5:
            context = None if rng.random() < 0.5 else context[:0]
        elif request.kind == "long context" and rng.random() < 0.05:
            context = np.resize(context, 1 << 19)
        contexts.append(context)
    names = [request.name for request in rows]
    given = [request.grammar for request in rows]
    left = [len(request.text) - request.length for request in rows]
    drafts = server.propose(contexts, names, given, left)
    if len(drafts) != len(rows):
        raise RuntimeError("a step lost a row")
    for request, draft in zip(rows, drafts, strict=True):
        right = request.write(draft)
        if request.kind == "good":
            counts["good tokens"] += right + 1
            counts["good steps"] += 1


def figures():
    """Return a table with a row for each tenth."""
    parts = serve(NUM_REQUESTS)
    lines = [
        "| ended requests | good ones | their tokens per step | limited ones | resident memory |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    before = Counter()
    for part in parts:
        tokens, steps = (part[name] - before[name] for name in ("good tokens", "good steps"))
        lines.append(
            f"| {part['ended']:,} | {part['ended well']:,} | {tokens / steps:.2f} | "
            f"{part['limited']:,} | {part['rss']:.0f} MiB |"
        )
        before = Counter(part)
        is_lost = part["begun"] != part["ended"] + part["open"]
        if is_lost or part["failures"] > part["raising"]:
            raise RuntimeError(f"requests were lost, or steps failed: {part}")
    return lines
