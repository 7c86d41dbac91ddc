"""Structured output in the adapters of vLLM and SGLang, by the matchers of both libraries."""

from concurrent.futures import Future
from threading import Event
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

from datastores import until
from grammars import EOS, GRAMMARS, VOCABULARY, Reference
from models import VOCAB_SIZE
from specds.constraints import constraint_of_engine
from specds.integrations import sglang, vllm, vllm_grammars
from specds.integrations.adapter import Adapter
from specds.integrations.compile_threads import CompileThreads
from vllm_shapes import config_of, runner_of

LIBRARIES = {"xgrammar": "xgrammar", "guidance": "llguidance"}
PROMPT = [5, 6, 5]
THINKS, NO_MORE = 7, 8
ENDLESS = ['root ::= "le" root', 'root ::= "l" b\nb ::= "e" b', 'root ::= "' + "lev" * 2000 + '"']


def engine_grammar(backend):
    """Return a grammar with the attributes of those in vLLM and SGLang."""
    grammar = GRAMMARS[LIBRARIES[backend]]()
    if backend == "guidance":
        return SimpleNamespace(ll_matcher=grammar.deep_copy())
    import xgrammar

    return SimpleNamespace(ctx=grammar, matcher=xgrammar.GrammarMatcher(grammar))


class Parser:
    """A reasoning parser: the reasoning ends with a token."""

    def __init__(self, tokenizer):
        pass

    def is_reasoning_end(self, token_ids):
        return NO_MORE in token_ids

    def is_reasoning_end_streaming(self, token_ids, new):
        assert token_ids[len(token_ids) - len(new) :] == new
        return NO_MORE in new


@pytest.fixture(params=[*LIBRARIES])
def compiled(request, monkeypatch):
    """Put the parts of vLLM into place that make grammars; record what is compiled."""
    made = []

    def compile_grammar(*about, **more):
        made.append(about)
        return engine_grammar(request.param)

    backend = SimpleNamespace(compile_grammar=compile_grammar)
    parts = dict.fromkeys(vllm_grammars.NEEDED, lambda *_, **__: backend)
    parts["vllm.v1.structured_output.request:get_structured_output_key"] = lambda params: (
        "json",
        params.json,
    )
    parts["vllm.reasoning:ReasoningParserManager.get_reasoning_parser"] = lambda _: Parser
    monkeypatch.setattr(vllm_grammars, "resolve", parts.__getitem__)
    return SimpleNamespace(backend=request.param, made=made)


def asks(backend, schema="{}"):
    params = SimpleNamespace(_backend=backend, json=schema)
    return SimpleNamespace(structured_outputs=params, all_stop_token_ids={EOS}, extra_args=None)


def configured(parser="", **options):
    config = config_of(max_model_len=200, k=8, step_cost="ignored", min_prob=0.0, **options)
    config.model_config.get_vocab_size = lambda: VOCAB_SIZE
    about = {"reasoning_parser": parser, "enable_in_reasoning": False}
    config.structured_outputs_config = SimpleNamespace(**about)
    return config


def step(proposer, requests, outputs):
    """Pass the texts of V1 rows, and return their drafts."""
    proposer.runner = runner_of([*requests])
    for name, sampling in requests.items():
        proposer.runner.requests[name].sampling_params = sampling
        proposer.runner.requests[name].prompt_token_ids = PROMPT
    tokens = np.full((len(outputs), 200), 3, np.int32)
    for row, output in enumerate(outputs):
        tokens[row, : len(PROMPT) + len(output)] = [*PROMPT, *output]
    lengths = np.array([len(PROMPT) + len(output) for output in outputs], np.int32)
    return proposer.propose([output[-1:] for output in outputs], lengths, tokens)


def wait(proposer):
    for shadow in proposer.shadows.values():
        shadow._begun.exception()


def follow(shadow, tokens):
    shadow.follow(np.array([*PROMPT, *tokens], np.uint32), 0)


def random_text(rng):
    """Return the tokens of a random text of the grammar, each cut at random."""
    reference = Reference()
    while not reference.ended:
        reference.push(int(rng.choice(np.flatnonzero(reference.mask()))))
    return reference.tokens


@pytest.mark.parametrize("backend", LIBRARIES)
def test_constraint_of_an_engine_begins_where_the_matcher_is_and_leaves_it_there(backend):
    grammar = engine_grammar(backend)
    matcher = grammar.ll_matcher if backend == "guidance" else grammar.matcher
    push = matcher.consume_token if backend == "guidance" else matcher.accept_token
    assert push(VOCABULARY.index(b'{"'))
    for _ in range(2):
        constraint = constraint_of_engine(grammar)
        assert constraint.push(VOCABULARY.index(b"l"))
    assert push(VOCABULARY.index(b"l"))
    assert constraint_of_engine(SimpleNamespace()) is None


def test_drafts_of_vllm_hold_what_a_grammar_forces_and_nothing_forbidden(compiled):
    rng, proposer = np.random.default_rng(0), vllm.Proposer(configured())
    num_drafted = 0
    for number in range(8):
        text = random_text(rng)
        if compiled.backend == "guidance":
            text = allowed_text(rng)
        name, length = str(number), 0
        requests = {name: asks(compiled.backend), "free": None}
        step(proposer, requests, [text[:1], [9]])
        wait(proposer)
        while length < len(text):
            length = min(length + int(rng.integers(1, 4)), len(text))
            [draft, _] = step(proposer, requests, [text[:length], [9] * (length + 1)])
            constraint = constraint_of_engine(engine_grammar(compiled.backend))
            assert all(map(constraint.push, text[:length]))
            forced = constraint.ahead()
            assert bool(draft) >= (len(forced) == 1)
            for token in draft:
                assert not constraint.ended
                assert constraint.push(token)
            num_drafted += len(draft)
    assert proposer.num_failures == 0
    assert num_drafted > 100
    assert len(compiled.made) == 1
    assert [*proposer.shadows] == [name]


def allowed_text(rng):
    """Return a random text as llguidance allows it: forced bytes are the tokenizer's tokens."""
    constraint, tokens = constraint_of_engine(engine_grammar("guidance")), []
    while not constraint.ended:
        tokens.append(int(rng.choice(np.flatnonzero(constraint.mask()[:VOCAB_SIZE]))))
        constraint.push(tokens[-1])
    return tokens


def test_drafts_without_the_grammar_hold_forbidden_tokens(compiled):
    """Otherwise the test above shows nothing."""
    proposer, text = vllm.Proposer(configured()), [VOCABULARY.index(b'{"'), *PROMPT]
    [draft] = step(proposer, {"a": None}, [text])
    constraint = constraint_of_engine(engine_grammar(compiled.backend))
    assert draft
    assert not all(map(constraint.push, [text[0], *draft]))


def test_trees_of_sglang_hold_what_a_grammar_forces_and_nothing_forbidden(compiled):
    rng, is_guidance = np.random.default_rng(1), compiled.backend == "guidance"
    corpus = sglang.SpecdsCorpus({}, 9, vocab_size=VOCAB_SIZE)
    draft, num_drafted = corpus.drafter.draft_trees, 0
    corpus.drafter = MagicMock(wraps=corpus.drafter)
    corpus.drafter.num_predictions = 0
    for number in range(8):
        request = request_of(str(number), engine_grammar(compiled.backend))
        matcher = request.grammar.ll_matcher if is_guidance else request.grammar.matcher
        push = matcher.consume_token if is_guidance else matcher.accept_token
        for token in allowed_text(rng) if is_guidance else random_text(rng):
            trees = []
            corpus.drafter.draft_trees = lambda *given, trees=trees: (
                trees.append(draft(*given)) or trees[0]
            )
            assert token == EOS or push(token)
            request.output_ids.append(token)
            corpus.begin([request])
            text = [*PROMPT, *request.output_ids]
            corpus.batch_get([request.rid], [text], [len(text)])
            [(token_ids, [length], [mask])] = trees
            constraint = constraint_of_engine(request.grammar)
            for row in mask[1 : 1 + length] if token != EOS else ():
                path = token_ids[0, np.flatnonzero(row)[1:]].tolist()
                assert all(map(constraint.push, path))
                constraint.pop(len(path))
            num_drafted += length
    assert corpus.num_failures == 0
    assert num_drafted > 500


def request_of(name, grammar):
    grammar.is_terminated = lambda: EOS in request.output_ids
    request = SimpleNamespace(rid=name, grammar=grammar, output_ids=[])
    request.origin_input_ids_unpadded, request.sampling_params = PROMPT, MagicMock()
    request.extra_key = request.cache_salt = request.lora_id = None
    request.sampling_params.custom_params = None
    return request


@pytest.mark.parametrize("backend", LIBRARIES)
def test_grammar_of_sglang_that_lags_behind_the_text_or_reasons_is_not_used(backend):
    corpus, request = sglang.SpecdsCorpus({}, 9), request_of("a", engine_grammar(backend))
    corpus.begin([request])
    assert corpus._constraint("a", len(PROMPT)) is not None
    assert corpus._constraint("a", len(PROMPT) + 1) is None
    assert corpus._constraint("b", len(PROMPT)) is None
    reasons = SimpleNamespace(grammar=request.grammar, tokens_after_end=-1)
    request.grammar = reasons
    assert corpus._constraint("a", len(PROMPT)) is None
    reasons.tokens_after_end = 0
    assert corpus._constraint("a", len(PROMPT)) is not None
    reasons.grammar.is_terminated = lambda: True
    assert corpus._constraint("a", len(PROMPT)) is None


def test_shadow_of_a_text_that_the_grammar_forbids_is_silent(compiled):
    grammars = vllm_grammars.Grammars(configured(), MagicMock())
    shadow = grammars.shadow(asks(compiled.backend), PROMPT)
    shadow._begun.result()
    follow(shadow, [VOCABULARY.index(b'{"')])
    assert shadow.constraint is not None
    follow(shadow, [VOCABULARY.index(b'{"'), VOCABULARY.index(b"q")])
    assert shadow.constraint is None


@pytest.mark.parametrize("steps", [[1, 2, 3, 4, 5], [5], [2, 5], [3, 4]])
def test_shadow_begins_after_the_reasoning(compiled, steps):
    grammars = vllm_grammars.Grammars(configured("a parser"), MagicMock())
    text = [THINKS, THINKS, NO_MORE, VOCABULARY.index(b'{"'), VOCABULARY.index(b"l")]
    shadow = grammars.shadow(asks(compiled.backend), PROMPT)
    shadow._begun.result()
    for length in steps:
        follow(shadow, text[:length])
        assert (shadow.constraint is not None) == (length >= 3)
    assert shadow.constraint.push(VOCABULARY.index(b"e")) == (length == 5)
    begun = grammars.shadow(asks(compiled.backend), [*PROMPT, NO_MORE])
    assert begun._begun.result()[1] is None


def test_shadow_is_silent_until_it_is_compiled_and_where_that_failed(compiled):
    late, failed = Future(), Future()
    failed.set_exception(ValueError())
    shadow, never = (vllm_grammars.Shadow(begun, PROMPT) for begun in (late, failed))
    text = [VOCABULARY.index(b'{"'), VOCABULARY.index(b"l"), VOCABULARY.index(b"e")]
    for length in (1, 2):
        follow(shadow, text[:length])
        follow(never, text[:length])
        assert shadow.constraint is never.constraint is None
    late.set_result((constraint_of_engine(engine_grammar(compiled.backend)), None))
    follow(shadow, text)
    assert shadow.constraint.push(VOCABULARY.index(b"v"))


def xgrammar_of(source):
    """Return an engine's grammar of an EBNF source."""
    import xgrammar

    info = xgrammar.TokenizerInfo(VOCABULARY, stop_token_ids=[EOS])
    compiled = xgrammar.GrammarCompiler(info, max_threads=1).compile_grammar(source)
    return SimpleNamespace(ctx=compiled, matcher=xgrammar.GrammarMatcher(compiled))


@pytest.mark.parametrize("source", ENDLESS)
def test_forced_text_without_an_end_is_drafted_like_another(source):
    """Ask for no more of it than is drafted: xgrammar's own search for it never ends."""
    grammar = xgrammar_of(source)
    constraint, text = constraint_of_engine(grammar), b""
    for _ in range(60):
        [path] = constraint.ahead()
        assert path
        for token in path:
            assert constraint.push(token)
        constraint.pop(len(path) - 1)  # a part of it is emitted
        text += VOCABULARY[path[0]]
    [short] = constraint_of_engine(grammar, max_forced=3).ahead()
    assert 0 < len(short) <= 3
    assert source[10:12].encode()[:1] == text[:1]


class CostlyConstraint:
    """A constraint that takes time of a clock, or fails, in each step."""

    ended, now = False, 0.0

    def __init__(self, seconds, fails):
        self.seconds, self.fails, self.num_calls = seconds, fails, 0

    def ahead(self):
        self.num_calls += 1
        if self.fails:
            raise RuntimeError("of a grammar")
        self.now += self.seconds
        return []

    def push(self, token):
        return True

    def pop(self, count):
        pass


@pytest.mark.parametrize(
    ("seconds", "fails", "num_calls"),
    [(0.001, False, 25), (0.0035, False, 6), (0.05, False, 1), (0, True, 1)],
)
def test_row_with_a_costly_or_failing_grammar_decodes_without_drafts(
    monkeypatch, seconds, fails, num_calls
):
    adapter = Adapter({"max_row_time": 0.002, "min_prob": 0.0}, 8, vocab_size=VOCAB_SIZE)
    costly, text = CostlyConstraint(seconds, fails), [1, 2, 3] * 5
    monkeypatch.setattr("specds.integrations.adapter.thread_time", lambda: costly.now)
    for number in range(25):
        names = ["good", "hostile"]
        adapter.sync([text, [9, *text]], names)
        adapter.choose_allowed([None, costly])
        good, hostile = adapter.chains([100, 100])
        assert len(good) == 8
        assert bool(hostile) == (number + 1 < num_calls or num_calls == 25)
        text.append([1, 2, 3][number % 3])
    assert costly.num_calls == num_calls
    assert adapter.num_limited == (num_calls < 25)
    assert adapter.num_failures == fails
    # A later request of the same name is not limited.
    adapter.request_options.pop("hostile", None)
    adapter.sync([text, [8, *text]], names)
    adapter.choose_allowed([None, None])
    assert all(map(len, adapter.chains([100, 100])))


@pytest.mark.parametrize(("mask_s", "most"), [(0.0, 8), (0.0001, 8), (0.0006, 3), (0.005, 0)])
def test_draft_is_as_long_as_the_masks_of_its_tokens_allow(compiled, mask_s, most):
    adapter = Adapter({"max_row_time": 0.002, "min_prob": 0.0}, 8, vocab_size=VOCAB_SIZE)
    constraint = constraint_of_engine(engine_grammar(compiled.backend))
    constraint.ahead = list
    constraint.push, constraint.num_allowed = lambda _: True, len
    constraint.pop = lambda _: None
    text = [1, 2, 3] * 5
    adapter.sync([text], ["a"])
    constraint.mask_s = mask_s
    adapter.choose_allowed([constraint])
    assert len(adapter.chains([100])[0]) == most


def test_grammar_that_compiles_for_long_delays_no_other():
    threads, forever = CompileThreads(num_threads=2, max_threads=5, patience=0.05), Event()
    stuck = [threads.submit(forever.wait) for _ in range(4)]
    assert threads.submit(lambda: 7).result(timeout=30) == 7
    assert not any(result.done() for result in stuck)
    with pytest.raises(ZeroDivisionError):
        threads.submit(lambda: 1 // 0).result(timeout=30)
    forever.set()
    assert all(result.result(timeout=30) for result in stuck)


def test_requests_with_one_grammar_wait_for_one_compilation(compiled, monkeypatch):
    grammars, ready, make = vllm_grammars.Grammars(configured(), MagicMock()), Event(), []

    def compile_grammar(*about, **more):
        make.append(about)
        assert ready.wait(30)
        return engine_grammar(compiled.backend)

    backend = SimpleNamespace(compile_grammar=compile_grammar)
    monkeypatch.setattr(grammars, "_backend", lambda name: backend)
    slow = [grammars.shadow(asks(compiled.backend), PROMPT) for _ in range(40)]
    other = grammars.shadow(asks("guidance", "other"), PROMPT)
    until(lambda: len(make) == 2)
    ready.set()
    assert all(shadow._begun.result(30) for shadow in [*slow, other])
    assert len(make) == 2


def test_grammar_that_cannot_be_compiled_is_logged_once_in_a_while(compiled, monkeypatch):
    monkeypatch.setattr(vllm_grammars, "constraint_of_engine", lambda *_, **__: None)
    log = MagicMock()
    grammars = vllm_grammars.Grammars(configured(), log)
    for _ in range(5):
        assert grammars.shadow(asks(compiled.backend), PROMPT)._begun.exception()
    assert log.warning.call_count == 3
    assert grammars.shadow(asks("outlines"), PROMPT) is None
    assert grammars.shadow(SimpleNamespace(structured_outputs=None), PROMPT) is None
