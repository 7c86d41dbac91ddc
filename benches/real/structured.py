"""One process of `make bench-real` for requests with a grammar, plain and with drafts.

Drafts alone know nothing of the grammar, of which the same processor masks the logits. Drafts with
the grammar copy values of the prompt where it is free; a third way leaves these out.
"""

import json
import pkgutil
import sys
import time
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from itertools import takewhile
from pathlib import Path
from statistics import median
from unittest.mock import patch

from real.kinds import encode
from real.measure import CONVERTED, MODES, NATIVE, TRANSFORMERS, seeded, undrafted

GRAMMARS = ("xgrammar", "xgrammar-any-whitespace", "llguidance")
DRAFTS = {"8": (8, False), "32": (32, False), "32-log": (32, True)}
"""Nodes of a draft, and whether ten earlier answers are known."""
PLAIN, ALONE, GUIDED = "plain", "drafts alone", "with the grammar"
NO_VALUES = "no values"
"""The same as `GUIDED`, without values of the prompt."""
WAYS = (ALONE, NO_VALUES, GUIDED)
_NUM_LOGGED = 2  # the first texts of each schema


@cache
def _written():
    return json.loads(Path(__file__).with_name("structured.json").read_text())


def structured_kinds() -> list[str]:
    return [*_written()]


def requests(kind):
    """Return each request as its source and its text; the schemas of a kind take turns."""
    texts = [[(of, text) for text in of["texts"][_NUM_LOGGED:]] for of in _written()[kind]]
    return [each for turn in zip(*texts, strict=True) for each in turn]


def log():
    """Return ten requests that were answered before."""
    sources = [of for kind in _written().values() for of in kind]
    return [(of, text) for of in sources for text in of["texts"][:_NUM_LOGGED]]


def json_schema(short):
    """Return the JSON schema of the short form of `structured.json`."""
    if isinstance(short, str):
        return {"type": short}
    if isinstance(short, list) and isinstance(short[0], str):
        return {"enum": short}
    if isinstance(short, list):
        return {"type": "array", "items": json_schema(short[0]), "minItems": 1, "maxItems": 3}
    if "any" in short:
        return {"anyOf": [json_schema(each) for each in short["any"]]}
    of_keys = {"properties": {key: json_schema(of) for key, of in short.items()}}
    return {"type": "object", **of_keys, "required": [*short], "additionalProperties": False}


class CompiledGrammars:
    """Compiled grammars of one library, and their processors."""

    def __init__(self, name, tokenizer, vocab_size):
        self._library, _, self._whitespace = name.partition("-")
        try:
            if self._library == "xgrammar":
                import xgrammar as library
                from xgrammar.contrib.hf import LogitsProcessor
            else:
                import llguidance as library
        except ImportError:
            message = f"--grammars {name} needs {self._library}: pip install {self._library}"
            raise SystemExit(message) from None
        if self._library == "xgrammar":
            info = library.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocab_size)
            self._compiler = library.GrammarCompiler(info, max_threads=1)
            self._processor = LogitsProcessor
        else:
            from specds.constraints import GrammarProcessor

            text, ends = tokenizer.backend_tokenizer.to_str(), [tokenizer.eos_token_id]
            of_model = library.LLTokenizer(text, n_vocab=vocab_size, eos_token=ends)
            self._matcher = partial(library.LLMatcher, of_model)
            self._processor = GrammarProcessor
        self._made = {}

    def of(self, source):
        if source["frame"] not in self._made:
            self._made[source["frame"]] = self._compiled(source)
        return self._made[source["frame"]]

    def _compiled(self, source):
        regex = source.get("regex")
        schema = None if regex else json.dumps(json_schema(source["schema"]))
        if self._library == "xgrammar":
            if regex:
                return self._compiler.compile_regex(regex)
            whitespace = bool(self._whitespace)
            return self._compiler.compile_json_schema(schema, any_whitespace=whitespace)
        matcher = self._matcher.func
        if regex:
            return self._matcher(matcher.grammar_from_regex(regex))
        form = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
        return self._matcher(matcher.grammar_from_json_schema(schema, overrides=form))

    def processors(self, source, is_known):
        """Return the processor of a request; specds does not recognize an unknown one."""
        made = self._processor(self.of(source))
        return [made if is_known else lambda ids, scores: made(ids, scores)]

    def forced(self, source, tokens):
        """Return how many forced tokens would be drafted along a text, and how many are in it."""
        from specds.constraints import GrammarProcessor

        constraint, place, drafted, right = GrammarProcessor(self.of(source)).start(0)(), 0, 0, 0
        while place < len(tokens):
            found = _shared(constraint.ahead())[: len(tokens) - place]
            same = len(_shared([found, tokens[place:]]))
            drafted, right = drafted + min(same + 1, len(found)), right + same
            for token in tokens[place : place + same + 1]:
                if not constraint.push(token):
                    return drafted, right
            place += same + 1
        return drafted, right


def measure(settings, write):
    """Call `write` with a row for each request; `settings` are those that `real` passes as JSON."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(settings["threads"])
    for backend in settings["ways"]:
        target, tokenizer = _target(settings["model"], backend)
        vocab_size, length = target.model.config.vocab_size, settings["new_tokens"]
        for library in settings["grammars"]:
            grammars = CompiledGrammars(library, tokenizer, vocab_size)
            asked = _AskedTarget(target, tokenizer, undrafted(backend), grammars, length)
            about = {"grammar": library, "backend": backend}
            logged = {}
            if any(DRAFTS[name][1] for name in settings["drafts"]):
                logged = {"answers": [asked.logged(each) for each in log()]}
            for mode in settings["modes"]:
                for row in asked.rows(mode, settings, **logged):
                    write(about | {"mode": mode} | row)


def _target(name, backend):
    from real.models import folder_of, gguf_of
    from specds.bench.generation.target import BenchTarget

    if backend == CONVERTED:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        folder = folder_of(name)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()
        return BenchTarget(model), AutoTokenizer.from_pretrained(folder)
    import specds

    model, tokenizer = specds.load_gguf(gguf_of(name), NATIVE[backend])
    return BenchTarget(model), tokenizer


class _AskedTarget:
    def __init__(self, target, tokenizer, plain, grammars, new_tokens):
        from specds import FusedDrafter
        from specds.bench.generation.target import baseline_way, own_calls

        self._target, self._tokenizer, self._grammars = target, tokenizer, grammars
        self._new_tokens = new_tokens
        name = "generate" if plain == TRANSFORMERS else PLAIN
        self._plain = baseline_way(name, target).start()
        self._drafted = own_calls(target, FusedDrafter, 8)

    def _ids(self, request):
        text = request[0]["frame"].replace("{}", request[1])
        return encode(self._tokenizer, [{"role": "user", "content": text}])

    def _call(self, call, request, mode, way=PLAIN):
        is_known = way in (GUIDED, NO_VALUES)
        given = {"logits_processor": self._grammars.processors(request[0], is_known)}
        given |= {**MODES[mode], "max_new_tokens": self._new_tokens}
        with ExitStack() as stack:
            if way == NO_VALUES:
                of_request = "specds.generation.decode.values_of"
                stack.enter_context(patch(of_request, lambda *_: None))
            drafts = stack.enter_context(_noted_times("specds.generation.budget.FixedBudget.draft"))
            of_matcher = "specds.constraints.constraint.MatcherConstraint.mask"
            masks = stack.enter_context(_noted_times(of_matcher))
            [tokens], stats, _ = call([self._ids(request)], given)
            row = {"texts": [tokens], "tokens": len(tokens)}
        if stats:
            row |= {"passes": 1 + stats.num_drafts, "host": stats.draft_s + stats.observe_s}
            row |= {"draft_us": drafts, "masks": len(masks)}
        return row

    def logged(self, request):
        return self._ids(request) + self._call(self._drafted, request, "greedy", GUIDED)["texts"][0]

    def rows(self, mode, settings, answers=()):
        import specds
        from specds.bench.generation.target import own_calls
        from specds.bench.turns import in_turns

        def started(nodes, is_logged):
            memory = specds.Memory(self._target.model.config.vocab_size) if is_logged else None
            for tokens in answers if is_logged else ():
                memory.insert("", tokens)
            return own_calls(self._target, lambda: specds.FusedDrafter(memory=memory), nodes)

        chosen = [(name, way) for name in settings["drafts"] for way in WAYS]
        calls = {key: started(*DRAFTS[key[0]]) for key in chosen if not DRAFTS[key[0]][1]}
        for kind in settings["kinds"]:
            for number, request in enumerate(requests(kind)[: settings["limit"]]):
                of_request = partial(seeded, number + 1, self._call)
                ways = {PLAIN: partial(of_request, self._plain, request, mode)}
                for key in chosen:
                    call = calls.get(key) or started(*DRAFTS[key[0]])
                    ways[key] = partial(of_request, call, request, mode, key[1])
                turn = in_turns(ways, number).items()
                found = {key: {"seconds": of.cpu_seconds, **of.result} for key, of in turn}
                plain = found.pop(PLAIN)
                forced = self._grammars.forced(request[0], plain["texts"][0])
                for (drafts, way), row in found.items():
                    row |= {"plain_seconds": plain["seconds"], "forced": forced}
                    row["same"] = row.pop("texts") == plain["texts"]
                    yield {"kind": kind, "number": number, "drafts": drafts, "way": way, **row}


def _shared(paths):
    return [of[0] for of in takewhile(lambda of: len({*of}) == 1, zip(*paths, strict=False))]


@contextmanager
def _noted_times(name):
    """Note the microseconds of each call of a method."""
    found, method = [], pkgutil.resolve_name(name)

    def noted(*arguments, **named):
        start = time.thread_time()
        try:
            return method(*arguments, **named)
        finally:
            found.append(1e6 * (time.thread_time() - start))

    with patch(name, noted):
        yield found


def print_structured(rows):
    """Print a table of all settings, and one of kinds; figures are those of whole settings."""
    each = " | ".join(WAYS)
    head = f"tokens a pass, {each} | ratio | gain of values"
    speeds = f"times plain, {each} | draft us p50, {each}"
    rest = "masks a pass | forced tokens right | host ms a pass more | same text"
    print(f"\n| grammar, mode, nodes, backend | {head} | {speeds} | {rest} |\n|{' --- |' * 16}")
    settings = {_setting(row): None for row in rows}
    for setting in settings:
        own = [row for row in rows if _setting(row) == setting]
        ways = _by_way(own)
        alone, _, guided = ways
        host = (sum(row["host"] for row in of) / _sum(of, "passes") for of in (guided, alone))
        more = 1e3 * (next(host) - next(host))
        forced, right = (sum(row["forced"][at] for row in guided) for at in (0, 1))
        speed = [_sum(of, "plain_seconds") / _sum(of, "seconds") for of in ways]
        times = [median(each for row in of for each in row["draft_us"]) for of in ways]
        cells = [*_tokens(*ways), *(f"{each:.2f}" for each in speed)]
        cells += [f"{each:.0f}" for each in times]
        # The processor of xgrammar computes its masks itself.
        is_ours = not setting[0].startswith("xgrammar")
        cells.append(f"{_sum(guided, 'masks') / _sum(guided, 'passes'):.2f}" if is_ours else "")
        cells += [f"{right / max(forced, 1):.3f}", f"{more:.2f}"]
        cells.append(f"{sum(row['same'] for row in own)} of {len(own)}")
        print(f"| {', '.join(setting)} | {' | '.join(cells)} |")
    kinds = [*dict.fromkeys(row["kind"] for row in rows)]
    print(f"\n| {head} | {' | '.join(kinds)} |\n|{' --- |' * (1 + len(kinds))}")
    for setting in settings:
        own = [row for row in rows if _setting(row) == setting]
        cells = []
        for kind in kinds:
            of_kind = [row for row in own if row["kind"] == kind]
            cells.append(" / ".join(_tokens(*_by_way(of_kind))[:3]) if of_kind else "")
        print(f"| {', '.join(setting)} | {' | '.join(cells)} |")


def _setting(row):
    return row["grammar"], row["mode"], row["drafts"], row["backend"]


def _by_way(rows):
    return [[row for row in rows if row["way"] == way] for way in WAYS]


def _sum(rows, name):
    return sum(row[name] for row in rows)


def _tokens(alone, no_values, guided):
    found = [_sum(of, "tokens") / _sum(of, "passes") for of in (alone, no_values, guided)]
    ratios = [f"{found[2] / found[0]:.2f}", f"{found[2] / found[1] - 1:+.1%}"]
    return [*(f"{each:.2f}" for each in found), *ratios]


if __name__ == "__main__":
    measure(json.loads(sys.argv[1]), lambda row: print(json.dumps(row), flush=True))
