"""Structured output of real engines, in the tests of both runners of vLLM and of SGLang."""

from specds.integrations.vllm_grammars import Grammars

KINDS, BOOLEAN = {"enum": ["function", "class", "module"]}, {"type": "boolean"}
_KEYS = {"kind_of_object": KINDS, "is_documented": BOOLEAN, "is_exported": BOOLEAN}
SCHEMA = {
    "type": "object",
    "properties": _KEYS,
    "required": [*_KEYS],
    "additionalProperties": False,
}


def structured_texts(engine, prompts):
    """Return the texts of three grammars and of a request without one, in one batch."""
    grammars = [
        {"json": SCHEMA},
        {"json": {"type": "array", "items": KINDS, "minItems": 3, "maxItems": 3}},
        {"regex": "( [a-e]{1,3}){8}"},
        None,
    ]
    return engine.generate(prompts[:4], max_tokens=20, structured=grammars, ignore_eos=False)


def check_grammars(monkeypatch, engine_of, drafting, prompts, backend, **about):
    """Check that drafts speed structured output up, change no text and have no forbidden token."""
    about |= {"structured_outputs_config": {"backend": backend}}
    with engine_of(**about) as engine:
        expected = structured_texts(engine, prompts)
    begin = Grammars.shadow

    def compiled(*arguments):
        if shadow := begin(*arguments):
            assert shadow._begun.result()  # else the first drafts would depend on the time
        return shadow

    counts = []
    for shadow in (lambda *_: None, compiled):
        monkeypatch.setattr(Grammars, "shadow", shadow)
        with engine_of(**drafting, **about) as engine:
            assert structured_texts(engine, prompts) == expected
            stats = engine.proposer.drafter.stats()
            assert engine.proposer.num_failures == stats["num_refused"] == 0
        print(f"\n{backend}: {stats}")
        counts.append([stats[name] for name in ("num_row_steps", "num_cut_tokens")])
    (alone, cut), (guided, left) = counts
    assert guided < alone
    if about.get("async_scheduling"):
        return  # rows without a draft are filled up, whatever their grammar
    # vLLM ignores an end token after the matcher of guidance has stopped: at most one a text.
    assert left <= (3 if backend == "guidance" else 0) < cut
