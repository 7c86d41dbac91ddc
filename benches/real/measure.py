"""One process of `make bench-real`: several ways answer requests of some kinds on one file."""

import json
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

NEW_TOKENS = 64
MODES = {
    "greedy": {"do_sample": False},
    "T 0.7": {"do_sample": True, "temperature": 0.7, "top_k": 0},
}
TRANSFORMERS, LOOKUP = "transformers", "transformers-prompt-lookup"
# llama-server's own drafts. Their lengths suit a CPU; by default they are for GPUs, and match less.
_MOD = "--spec-ngram-mod-n-match 6 --spec-ngram-mod-n-min 0 --spec-ngram-mod-n-max 8"
_SIMPLE = "--spec-ngram-simple-size-n 4 --spec-ngram-simple-size-m 7"
LLAMA = {
    "llama.cpp": "",
    "llama.cpp-ngram-simple": f"--spec-type ngram-simple {_SIMPLE}",
    "llama.cpp-ngram-mod": f"--spec-type ngram-mod {_MOD}",
}
PLAIN, DRAFTS, DEFAULT = "plain", "specds", "specds-default-datastore"
_INT8 = "-int8"
NATIVE = {
    f"{way}{of}": of[1:] or "float32" for of in ("", _INT8) for way in (PLAIN, DRAFTS, DEFAULT)
}
"""Ways of specds on the file, and their activations."""
# specds on the model of transformers.
CONVERTED = "specds-transformers"
WAYS = (TRANSFORMERS, *LLAMA, *NATIVE, LOOKUP, CONVERTED)


def undrafted(way):
    """Return the way that has the same text without drafts."""
    if way in NATIVE:
        return PLAIN + (_INT8 if way.endswith(_INT8) else "")
    return "llama.cpp" if way in LLAMA else TRANSFORMERS


def without_datastore(way):
    """Return the way that has the same sources but for the default datastore."""
    return way.replace(DEFAULT, DRAFTS)


def measure(settings, write):
    """Call `write` with a row for each request; `settings` are those that `real` passes as JSON."""
    import torch
    import transformers

    from real.kinds import encode, log, messages
    from specds.bench.turns import in_turns

    torch.set_num_threads(settings["threads"])
    transformers.logging.set_verbosity_error()
    with ExitStack() as stack:
        asked = AskedModel(settings, stack)
        for kind in settings["kinds"]:
            prompts = [encode(asked.tokenizer, of) for of in messages(kind)[: settings["limit"]]]
            logged = [encode(asked.tokenizer, one) for one in log(kind)]
            length = {"max_new_tokens": settings["new_tokens"]}
            answers = [
                ids + asked.plain(ids, MODES["greedy"] | length)["texts"][0] for ids in logged
            ]
            for mode in settings["modes"]:
                ways = [way for way in settings["ways"] if way not in LLAMA or mode == "greedy"]
                calls = {way: asked.start(way, answers) for way in ways}
                for number, ids in enumerate(prompts):
                    given = ids, MODES[mode] | length
                    now = {way: partial(seeded, number + 1, calls[way], *given) for way in ways}
                    found = in_turns(now, number)
                    rows = {
                        way: {"seconds": each.cpu_seconds, "wall": each.seconds} | each.result
                        for way, each in found.items()
                    }
                    asked.compare(ids, rows)
                    for way in ways:
                        about = {"kind": kind, "mode": mode, "way": way, "number": number}
                        write(about | rows[way])


def seeded(seed, call, *arguments):
    import torch

    torch.manual_seed(seed)
    return call(*arguments)


class AskedModel:
    """The models and servers of the ways of a process."""

    def __init__(self, settings, stack):
        import specds
        from engines.llama_server import LlamaServer
        from real.models import default_datastore_of, folder_of, gguf_of
        from specds._core import ForwardModel, GgufFile
        from specds.bench.generation.target import BenchTarget

        self._settings, ways = settings, settings["ways"]
        path = gguf_of(settings["model"])
        self._targets = {}
        for activations in ("float32", "int8"):
            model, self.tokenizer = specds.load_gguf(path, activations)
            if settings["instructions"] != "auto":
                with_these = {"instructions": settings["instructions"]}
                model.weights = ForwardModel(GgufFile(path), **with_these)
            specds.warm_up(model)
            self._targets[activations] = BenchTarget(model)
        if {TRANSFORMERS, LOOKUP, CONVERTED} & {*ways}:
            from transformers import AutoModelForCausalLM

            folder = folder_of(settings["model"])
            model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()
            self._targets[TRANSFORMERS] = BenchTarget(model)
        is_default = any(way.startswith(DEFAULT) for way in ways)
        self._datastore = default_datastore_of(self.tokenizer) if is_default else None
        self._servers, logs = {}, Path(stack.enter_context(TemporaryDirectory()))
        for number, way in enumerate(way for way in ways if way in LLAMA):
            given = {"model": settings["model"], "threads": settings["threads"]}
            server = LlamaServer("plain", LLAMA[way].split(), logs / f"{number}.log", **given)
            self._servers[way] = stack.enter_context(server)
        self.plain = self.start(PLAIN, [])

    def start(self, way, answers):
        """Begin requests of a kind; return a function of a prompt and settings."""
        import specds
        from specds.bench.generation import target as targets

        if way in LLAMA:
            return partial(self._by_server, self._servers[way])
        if way in (TRANSFORMERS, LOOKUP):
            name = "generate" if way == TRANSFORMERS else targets.PROMPT_LOOKUP
            call = targets.baseline_way(name, self._targets[TRANSFORMERS]).start()
        elif way.startswith(PLAIN):
            call = targets.baseline_way(targets.PLAIN, self._targets[NATIVE[way]]).start()
        else:
            target = self._targets[NATIVE.get(way, TRANSFORMERS)]
            memory = specds.Memory(target.model.config.vocab_size)
            for tokens in answers:
                memory.insert("", tokens)
            datastore = self._datastore if way.startswith(DEFAULT) else None
            make = partial(specds.FusedDrafter, datastore, memory=memory)
            call = targets.own_calls(target, make, "auto")
        # The first steps cost more.
        for length in (2, 64):
            call([[*range(5, 5 + length)]], {"max_new_tokens": 8, "do_sample": False})
        return partial(self._by_call, call)

    def _by_call(self, call, ids, settings):
        [text], stats, _ = call([ids], settings)
        row = {"texts": [text], "tokens": len(text)}
        if stats:
            row |= {"passes": 1 + stats.num_drafts, "shares": stats.shares}
            row |= {"drafted": stats.num_draft_tokens, "accepted": stats.num_accepted_tokens}
        return row

    def _by_server(self, server, ids, settings):
        return server.answered(ids, settings["max_new_tokens"])

    def compare(self, ids, rows):
        """Add to each row whether its text is that of transformers, or how near a tie it left it.

        A tie is the difference of the logits of the two tokens where the texts part.
        """
        import torch

        if TRANSFORMERS not in rows:
            return
        [expected] = rows[TRANSFORMERS]["texts"]
        model = self._targets[TRANSFORMERS].model
        for way in [way for way in (PLAIN, DRAFTS) if way in rows]:
            [text] = rows[way]["texts"]
            parted = next(
                (n for n, (a, b) in enumerate(zip(text, expected, strict=False)) if a != b), None
            )
            if parted is not None:
                with torch.no_grad():
                    logits = model(torch.tensor([ids + expected[:parted]])).logits[0, -1]
                rows[way]["tie"] = float((logits[text[parted]] - logits[expected[parted]]).abs())


if __name__ == "__main__":
    measure(json.loads(sys.argv[1]), lambda row: print(json.dumps(row), flush=True))
