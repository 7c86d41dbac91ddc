"""Random requests of models without torch: with drafts, without them, and by plain code.

`fuzz_generate.py` draws them in turn with those of transformers.
"""

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from gguf_families import tiny, write_family
from gguf_models import write_model
from models import SAMPLING, VOCAB_SIZE, mixed_drafter, oracle_drafter, random_drafter
from random_grammars import compiled, drawn_grammar
from specds import FusedDrafter, generate
from specds._core import ForwardCache, ForwardModel, GgufFile
from specds.constraints.processor import start_of
from specds.models.gguf_model import GgufModel

EOS = 0


class SlowWithoutDraftsError(Exception):
    """The library of a grammar takes too long for the masks of a text."""


class RaisedByBothError(Exception):
    """A request raises the same error with and without drafts."""


def require_same_error(expected: Exception, decode: Callable[[], object]) -> None:
    """Raise what is right where the request without drafts raises, such as at a dead end.

    Raises:
        RaisedByBothError: Decoding raises the expected error.
        AssertionError: It does not.
    """
    try:
        decode()
        found = "no error"
    except type(expected) as error:
        found = str(error)
    if found == str(expected):
        raise RaisedByBothError(found)
    raise AssertionError(f"{found}; without drafts {expected}")


DENSE = ["llama", "qwen3", "gemma3"]
RECURRENT = ["lfm2", "qwen35"]


def rolled(scores, by):
    """Exchange the scores of tokens; of torch or numpy, `(num_rows, vocab_size)`."""
    width = scores.shape[-1]
    return scores[:, [(place - by) % width for place in range(width)]]


class CallShift:
    """Processor whose result depends on the number of its calls."""

    def __init__(self):
        self.seen = []

    def __call__(self, input_ids, scores):
        self.seen.append(input_ids.tolist())
        return rolled(scores, len(self.seen) % 3)


class OrderedShift(CallShift):
    """Processor that fails unless each call has one token more."""

    def __call__(self, input_ids, scores):
        assert not self.seen or len(input_ids[0]) == len(self.seen[-1][0]) + 1
        return super().__call__(input_ids, scores)


class Ends:
    """Criterion that ends a text by its length or the number of its calls."""

    def __init__(self):
        self.seen = []

    def __call__(self, input_ids, scores):
        self.seen.append(input_ids.tolist())
        return input_ids.shape[1] % 37 == 0 or len(self.seen) == 29


@cache
def _model(name):
    path = Path(tempfile.mkdtemp()) / "m.gguf"
    if name in DENSE:
        write_model(path, name, seed=3, vocab=VOCAB_SIZE)
    else:
        write_family(path, name, tiny(name, vocab_size=VOCAB_SIZE))
    return GgufModel(ForwardModel(GgufFile(path)), "float32", {}, name)


def drawn_for_arrays(rng):
    """Draw a request of a model without torch."""
    settings = {"max_new_tokens": rng.randint(1, 60), "eos_token_id": EOS, "pad_token_id": EOS}
    is_sampled = rng.random() < 0.4
    settings |= SAMPLING if is_sampled else {"do_sample": False}
    if rng.random() < 0.2:
        settings["repetition_penalty"] = 1.3
    return {
        "arrays": rng.choice([*DENSE, *RECURRENT]),
        "grammar": drawn_grammar(rng) if rng.random() < 0.7 else None,
        "processors": rng.sample([CallShift, OrderedShift], rng.choice([0, 0, 1, 2])),
        "criteria": [Ends] if rng.random() < 0.3 else [],
        "length": rng.randint(1, 40),
        "seed": rng.randrange(1000),
        "settings": settings,
        "max_nodes": rng.choice([0, 1, 3, 9, 64, "auto"]),
        "drafter": rng.choice(["fused", "mixed", "oracle", "random", "none"]),
    }


def faults_of_arrays(request, on_plain=lambda: None):
    """Return what differs from the same request without drafts, and the number of accepted tokens.

    Args:
        request: The result of `drawn_for_arrays`.
        on_plain: Called when the request without drafts has returned.

    Raises:
        RaisedByBothError: The request raises the same error with and without drafts.
    """
    model, seed = _model(request["arrays"]), request["seed"]
    ids = np.random.default_rng(seed).integers(3, VOCAB_SIZE, (1, request["length"]))
    grammar = request["grammar"] and compiled(*request["grammar"])

    def run(drafter, max_nodes):
        processors, criteria = (
            [make() for make in request[kind]] for kind in ("processors", "criteria")
        )
        output = generate(
            model, ids, drafter, max_nodes=max_nodes, grammar=grammar, seed=seed,
            logits_processor=processors, stopping_criteria=criteria, **request["settings"],
        )  # fmt: skip
        calls = [each.seen for each in (*processors, *criteria)]
        return output.sequences[0].tolist(), calls, output.stats.num_accepted_tokens

    def run_ours(plain):
        makers = {"fused": FusedDrafter, "mixed": lambda: mixed_drafter(plain),
                  "oracle": lambda: oracle_drafter(plain), "random": random_drafter,
                  "none": lambda: None}  # fmt: skip
        return run(makers[request["drafter"]](), request["max_nodes"])

    try:
        plain, calls, _ = run(None, 0)
    except TimeoutError as error:
        raise SlowWithoutDraftsError from error
    except Exception as error:
        require_same_error(error, lambda: run_ours([*range(3, 70)]))
    on_plain()
    text, our_calls, accepted = run_ours(plain)
    checks = {"text": text == plain, "calls": our_calls == calls}
    is_greedy = not request["settings"]["do_sample"]
    if is_greedy and "repetition_penalty" not in request["settings"] and not request["criteria"]:
        checks["text by plain code"] = text == _by_plain_code(model, ids, grammar, request)
    return [name for name, is_right in checks.items() if not is_right], accepted


def _by_plain_code(model, ids, grammar, request):
    """The text of one pass over all tokens for each token, by a mask for each.

    What a library's parser has done counts towards its limits, so one constraint sees all tokens.
    """
    tokens, processors = ids[0].tolist(), [make() for make in request["processors"]]
    start = len(tokens)
    constraint = None if grammar is None else start_of(grammar)()
    while len(tokens) - start < request["settings"]["max_new_tokens"]:
        cache_ = ForwardCache(model.weights)
        scores = model.weights.forward(cache_, [(0, tokens, None, 1)])
        for processor in processors:
            scores = processor(np.array([tokens]), scores)
        if constraint is not None:
            mask = constraint.mask()[:VOCAB_SIZE]
            scores = np.where(mask, scores[:, : len(mask)], -np.inf)
        tokens.append(int(scores[0].argmax()))
        if tokens[-1] == EOS:
            break
        if constraint is not None:
            constraint.push(tokens[-1])  # at a limit it fails, and the next mask ends the text
    return tokens
