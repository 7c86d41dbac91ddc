"""Random requests by `model.generate` and by specds, whose results must be the same.

Each request draws a family, processors, a grammar, a draft size, a verification backend, a batch,
stops, a drafter and a seed, on tiny models with random weights. A different result is repeated in
float64: if it is equal there, rounding broke a tie, which is counted separately. Each third request
is one of a model without torch (`fuzz_arrays.py`). One that takes 30 s of CPU time is a failure,
unless the grammar's library takes them without drafts. Where `generate` raises, specds must raise
the same.
"""

import argparse
import json
import os
import random
import resource
import signal
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from time import perf_counter

import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)

from fuzz_arrays import (
    RaisedByBothError,
    SlowWithoutDraftsError,
    drawn_for_arrays,
    faults_of_arrays,
    require_same_error,
)
from models import (
    FAMILIES,
    VOCAB_SIZE,
    Drafter,
    Recorder,
    mixed_drafter,
    oracle_drafter,
    prompt,
    random_drafter,
    tiny_model,
)
from random_grammars import compiled, drawn_grammar
from specds import FusedDrafter, generate
from specds.constraints import GrammarProcessor
from specds.drafters import Memory
from specds.generation.runner import UnsupportedModelError

PAD = 1
MOST_SECONDS = 30


class Shift(LogitsProcessor):
    """Stateless processor, marked as such."""

    rowwise = True

    def __call__(self, input_ids, scores):
        return scores.roll(int(input_ids.shape[1]) % 3, dims=-1)


class AsksInOrder(LogitsProcessor):
    """Stateful processor, which must be called once per token in order."""

    def __init__(self):
        self.next_length = None

    def __call__(self, input_ids, scores):
        assert self.next_length in (None, input_ids.shape[1])
        self.next_length = input_ids.shape[1] + 1
        return scores.roll(self.next_length % 2, dims=-1)


class CountsCalls(LogitsProcessor):
    """Processor whose result depends on the number of its calls."""

    def __init__(self):
        self.num_calls = 0

    def __call__(self, input_ids, scores):
        self.num_calls += 1
        return scores.roll(self.num_calls % 3, dims=-1)


class Sees(StoppingCriteria):
    """Criterion that records its arguments, and ends a text at one of its calls."""

    def __init__(self):
        self.seen = []

    def __call__(self, input_ids, scores, **kwargs):
        self.seen.append((input_ids.tolist(), scores and len(scores)))
        ends = input_ids.shape[1] % 37 == 0 or len(self.seen) == 29
        return torch.tensor([ends], device=input_ids.device)


class Allows:
    """Function of allowed tokens that records its calls."""

    def __init__(self):
        self.seen = []

    def __call__(self, row, ids):
        self.seen.append((row, ids.tolist()))
        return self.allowed(ids)

    def allowed(self, ids):
        return [(int(ids[-1]) * k) % 97 for k in range(2, 9)]


class AllowsPurely(Allows):
    """One that says that it keeps no state: it may be called more often."""

    is_pure = True

    def __call__(self, row, ids):
        return self.allowed(ids)


class AllowsByCalls(Allows):
    """One whose result depends on the number of its calls."""

    def allowed(self, ids):
        return [(len(self.seen) * k) % 97 for k in range(2, 9)]


class AllowsInOrder(Allows):
    """An incremental parser, which fails unless each call has one token more."""

    def allowed(self, ids):
        assert len(ids) == len(self.seen[0][1]) + len(self.seen) - 1
        return [5, 6, 7] if len(self.seen) % 3 else [8, int(ids[-1])]


PROCESSORS = {
    "repetition_penalty": [1.1, 1.6],
    "no_repeat_ngram_size": [2, 3],
    "min_new_tokens": [5, 12],
    "bad_words_ids": [[[3], [7, 9]]],
    "suppress_tokens": [[4, 5, 6]],
    "exponential_decay_length_penalty": [(5, 1.2)],
    "renormalize_logits": [True],
    "own": [Shift],
}
OF_ONE_ROW = {
    "own": [Shift, AsksInOrder, CountsCalls],
    "prefix_allowed_tokens_fn": [Allows, AllowsPurely, AllowsByCalls, AllowsInOrder],
}
CONTRADICTIONS = {
    "bad_words_ids",
    "exponential_decay_length_penalty",
    "min_new_tokens",
    "prefix_allowed_tokens_fn",
    "suppress_tokens",
}
"""What may forbid each token that a grammar allows."""
WARPERS = {
    "temperature": [0.7, 5.0],
    "top_k": [0, 5, 50],
    "top_p": [0.8, 1.0],
    "min_p": [0.02],
    "typical_p": [0.7],
}


def drawn(rng: random.Random) -> dict:
    """Draw a request: the arguments of both sides, and those of specds."""
    rows = rng.choice([1, 1, 1, 2, 4])
    settings: dict = {"max_new_tokens": rng.randint(1, 40), "pad_token_id": PAD}
    settings["do_sample"] = rng.random() < 0.5
    known = PROCESSORS | (OF_ONE_ROW if rows == 1 else {})
    for name, values in {**known, **(WARPERS if settings["do_sample"] else {})}.items():
        if rng.random() < 0.2:
            settings[name] = rng.choice(values)
    if rows == 1 and rng.random() < 0.2:
        settings["sees"] = True
    if rng.random() < 0.3:
        for name in CONTRADICTIONS & settings.keys():
            del settings[name]
        settings["grammar"] = drawn_grammar(rng)
        settings["eos_token_id"] = [0]
    needs_eos = {"min_new_tokens", "exponential_decay_length_penalty"} & settings.keys()
    if "grammar" not in settings and (needs_eos or rng.random() < 0.4):
        settings["eos_token_id"] = rng.sample(range(2, VOCAB_SIZE), rng.randint(1, 6))
    if rng.random() < 0.3:
        settings |= {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    if rng.random() < 0.2:
        settings["prefill_chunk_size"] = rng.randint(1, 9)
    request = {
        "family": rng.choice([*FAMILIES]),
        "lengths": [rng.randint(1, 40) for _ in range(rows)],
        "padding": rng.choice([0, 0, 3]),
        "seed": rng.randrange(1000),
        "settings": settings,
        "max_nodes": rng.choice([0, 1, 3, 9, 64, "auto"]),
        "verification": rng.choice(["auto", "packed", "model"]),
        "drafter": rng.choice(["random", "mixed", "oracle", "forked", "wrong", "fused", "few"]),
    }
    hides = request["max_nodes"] != "auto" and rng.random() < 0.3
    return request | {"stream_interval": rng.choice([1, 4, 100]) if hides else None}


def inputs(request: dict) -> dict:
    width = max(request["lengths"]) + request["padding"]
    ids = torch.full((len(request["lengths"]), width), PAD)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(request["lengths"]):
        ids[row, width - length :] = prompt(length, seed=request["seed"] + row)[0]
        mask[row, width - length :] = 1
    return {"inputs": ids, "attention_mask": mask}


MAKERS = {
    "mixed": mixed_drafter,
    "oracle": oracle_drafter,
    "forked": lambda text: oracle_drafter(text, num_wrong=1),
    "wrong": lambda text: oracle_drafter([(token + 1) % VOCAB_SIZE for token in text]),
    "random": lambda _: random_drafter(),
}


class Knowing(Drafter):
    """Drafter that uses another drafter for each text, by its prompt."""

    def __init__(self, texts, lengths, make):
        super().__init__(None)
        self.of = {tuple(text[:n]): make(text) for text, n in zip(texts, lengths, strict=True)}

    def session(self, prompt_ids):
        self.sessions.append(self.of[tuple(prompt_ids)].session(prompt_ids))
        return self.sessions[-1]


def given_by(settings: dict, seed: int) -> dict:
    """Return the arguments of a request, with its own streamer and processors."""
    own = settings.get("own")
    kept = {name for name in settings if name not in ("own", "sees", "grammar")}
    given = {name: settings[name] for name in settings if name in kept}
    if own is not None:
        given["logits_processor"] = LogitsProcessorList([own()])
    if "prefix_allowed_tokens_fn" in given:
        given["prefix_allowed_tokens_fn"] = given["prefix_allowed_tokens_fn"]()
    if "sees" in settings:
        given["stopping_criteria"] = StoppingCriteriaList([Sees()])
    torch.manual_seed(seed)
    return {**given, "streamer": Recorder()}


def faults(
    request: dict, dtype: torch.dtype, on_plain: Callable[[], object] = lambda: None
) -> tuple[list[str], int]:
    """Return the differences from `model.generate`, and the number of accepted tokens.

    Args:
        request: The result of `drawn`.
        dtype: That of the model.
        on_plain: Called when `model.generate` has returned.

    Raises:
        RaisedByBothError: `model.generate` and specds raise the same error.
    """
    device, seed = request.get("device", "cpu"), request["seed"]
    make = request.get("make", partial(tiny_model, request["family"]))
    model = make(dtype).to(device)
    prompts = {name: of.to(device) for name, of in inputs(request).items()}
    numbers = torch.get_rng_state if device == "cpu" else torch.cuda.get_rng_state
    plain_given = given_by(request["settings"], seed)
    grammar = request["settings"].get("grammar")
    grammar = grammar and compiled(*grammar)
    if grammar is not None:
        processors = plain_given.get("logits_processor", ())
        enforced = LogitsProcessorList([*processors, GrammarProcessor(grammar)])
        plain_given["logits_processor"] = enforced
    ours = {name: request.get(name) for name in ("max_nodes", "verification", "stream_interval")}
    try:
        plain = model.generate(**prompts, **plain_given)
    except TimeoutError as error:
        raise SlowWithoutDraftsError from error
    except Exception as error:
        given = given_by(request["settings"], seed) | {"grammar": grammar}
        require_same_error(error, lambda: generate(model, **prompts, **given, **ours))
    on_plain()
    state = numbers()
    whole = plain if isinstance(plain, torch.Tensor) else plain.sequences
    width = prompts["inputs"].shape[1]
    texts = [row[width - n :].tolist() for row, n in zip(whole, request["lengths"], strict=True)]
    if request["drafter"] in MAKERS:
        drafter = Knowing(texts, request["lengths"], MAKERS[request["drafter"]])
    else:
        drafter = FusedDrafter(memory=Memory(VOCAB_SIZE if request["drafter"] == "fused" else 70))
    given = given_by(request["settings"], seed) | {"grammar": grammar}
    output = generate(model, drafter=drafter, **prompts, **given, **ours)
    checks = {
        "text": output.sequences.tolist() == whole.tolist(),
        "stream": given["streamer"].received == plain_given["streamer"].received,
        "random numbers": torch.equal(numbers(), state),
        "calls": calls_of(given) == calls_of(plain_given),
        "bookkeeping": is_booked(output, drafter, texts, request["lengths"]),
    }
    if whole is not plain:
        checks |= {name: are_near(output, plain, name, width) for name in ("scores", "logits")}
        length = None if output.cache is None else output.cache.get_seq_length()
        num_known = whole.shape[1] - 1 - request["padding"]
        checks["cache"] = length == (num_known if len(texts) == 1 else None)
    return [name for name, is_right in checks.items() if not is_right], (
        output.stats.num_accepted_tokens
    )


def calls_of(given: dict) -> list:
    """Return the arguments of a request's criteria and function."""
    called = [*given.get("stopping_criteria", []), given.get("prefix_allowed_tokens_fn")]
    called += given.get("logits_processor", [])
    return [each.seen for each in called if hasattr(each, "seen")]


def are_near(ours, plain, name, width) -> bool:
    """Return whether scores are near the baseline's; zeros where a sequence has ended."""
    pairs = zip(getattr(ours, name), getattr(plain, name), strict=True)
    for step, (mine, theirs) in enumerate(pairs):
        for row, (one, other) in enumerate(zip(mine, theirs, strict=True)):
            ended = len(ours.drafted_by_row[row]) <= step
            if one.any() if ended else not _are_close(one, other):
                return False
    return True


def _are_close(one, other) -> bool:
    # Where nothing is allowed, all scores are -inf, and NaN when they are normalized.
    return torch.allclose(one, other, atol=1e-3, equal_nan=True)


def is_booked(output, drafter, texts, lengths) -> bool:
    """Return whether sessions saw their texts, finished once, and the statistics add up."""
    stats, drafted = output.stats, output.drafted_by_row
    num_new = [*map(len, drafted)]
    sums = (
        sum(num_new) == stats.num_emitted_tokens
        and sum(map(sum, drafted)) == stats.num_accepted_tokens
        and sum(stats.num_accepted_tokens_per_pos) == stats.num_accepted_tokens
        and sum(map(sum, stats.acceptance_histogram)) == stats.num_drafts
    )
    if len(texts) == 1:
        no_bonus = stats.num_drafts > 0 and drafted[0][-1]
        sums &= num_new[0] == 1 + stats.num_accepted_tokens + stats.num_drafts - no_bonus
    return sums and all(
        session.finished == 1 and session.token_ids == text[: length + number]
        for session, text, length, number in zip(
            getattr(drafter, "sessions", ()), texts, lengths, num_new, strict=False
        )
    )


def outcome(
    request: dict, on_plain: Callable[[], object] = lambda: None
) -> tuple[str, list[str], int]:
    """`equal`, `tie`, `refused by name`, `different` or `raised`; what is wrong; tokens taken."""
    try:
        if "arrays" in request:
            wrong, accepted = faults_of_arrays(request, on_plain)
            return "different" if wrong else "equal", wrong, accepted
        wrong, accepted = faults(request, torch.float32, on_plain)
        if not wrong:
            return "equal", [], accepted
        wrong, _ = faults(request, torch.float64)
    except UnsupportedModelError:
        return "refused by name", [], 0
    except SlowWithoutDraftsError:
        return "slow without drafts", [], 0
    except RaisedByBothError:
        return "raised by both", [], 0
    except Exception as error:  # whatever it is, it is a finding
        return "raised", [f"{type(error).__name__}: {error}"], 0
    return "different" if wrong else "tie", wrong, accepted


def outcome_in_child(request: dict) -> tuple[str, list[str], int]:
    """Return the outcome from a process of its own.

    The mask of some grammars in Lark never ends, which no handler of a signal stops.
    """
    reader, writer = os.pipe()
    if os.fork() == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS // 5,) * 2)
        with os.fdopen(writer, "wb", buffering=0) as pipe:
            found = outcome(request, on_plain=lambda: pipe.write(b"plain\n"))
            pipe.write(json.dumps(found).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        *plain, found = pipe.read().split(b"\n")
    os.wait()
    if found:
        return tuple(json.loads(found))
    return ("raised", ["it never ends"], 0) if plain else ("slow without drafts", [], 0)


def _end(*_) -> None:
    raise TimeoutError(f"it took {MOST_SECONDS} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--configurations", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0, help="of the first; others follow")
    options = parser.parse_args()
    torch.set_num_threads(1)
    signal.signal(signal.SIGPROF, _end)
    counts: Counter[str] = Counter()
    start = perf_counter()
    for number in range(options.seed, options.seed + options.configurations):
        rng = random.Random(number)
        request = drawn_for_arrays(rng) if number % 3 == 0 else drawn(rng)
        signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
        grammar = request.get("grammar") or request["settings"].get("grammar") or ("none",)
        kind, wrong, accepted = (outcome_in_child if grammar[0] == "lark" else outcome)(request)
        counts[kind] += 1
        counts["accepted tokens"] += accepted
        if wrong:
            print(f"seed {number}: {request}\n  {kind}: {'; '.join(wrong)}", flush=True)
        num_done = number + 1 - options.seed
        if num_done % 50 == 0:
            seconds = perf_counter() - start
            print(f"{num_done} of {options.configurations}, {seconds:.0f} s", flush=True)
    seconds = perf_counter() - start
    print(f"{options.configurations} configurations, {dict(counts)}, {seconds:.0f} s")
    sys.exit(counts["different"] + counts["raised"] > 0)


if __name__ == "__main__":
    main()
