r"""A real model in vLLM on a CPU writes requests of nine kinds: plain, with specds, with n-grams.

    make bench-vllm ARGS="--limit 2"
    make bench-vllm ARGS="--kinds schema tools --limit 5 --ways plain specds"
    make bench-vllm ARGS="--new-tokens 64 --at-once --prompts-cached"
    make bench-vllm ARGS="--new-tokens 32 --at-once --ways plain specds bound"
    make bench-vllm ARGS="--kinds 'chat with a log' 'code with a log' --rows 1"
    make bench-vllm ARGS='--kinds edit summary --sampling "{\"repetition_penalty\": 1.3}"'

Kinds at once, some requests of each, then each kind alone, two requests at a time. All ways run in
one process and take turns at each batch. CPU seconds, the prompts included, unless they are cached
(`--prompts-cached`). Requests of `schema` and `tools` have grammars, and are all at once. `bound`
verifies only the drafted tokens that the baseline text contains, so no choice of draft sizes can
gain more.
"""

import json
from contextlib import ExitStack

from engines.workload import WHOLE
from real.kinds import encode, every_kind, log, messages, parser
from real.models import folder_of
from real.structured import json_schema, requests, structured_kinds
from real.tables import print_tables

NGRAMS = {"method": "ngram", "num_speculative_tokens": 5}
# The last one's kernels break an engine that starts later.
WAYS = ("plain", "specds", "bound", "n-grams")
HELLO = [[{"role": "user", "content": "Hello."}]]
_WITH_MEMORY = ("specds", "bound")


def main():
    from engines.vllm import Engine, chains

    options = parser(__doc__, WAYS, every_kind(), limit=2, more=structured_kinds())
    options.set_defaults(ways=[way for way in WAYS if way != "bound"])
    options.add_argument("--at-once", action="store_true", help="no kind alone but those with logs")
    options.add_argument(
        "--prompts-cached", action="store_true", help="read the prompts before time is measured"
    )
    options.add_argument("--rows", type=int, default=10, help="requests of a step, at most")
    options.add_argument("--sampling", default={}, type=json.loads, help="of all requests, as JSON")
    asked = options.parse_args()
    ours = {"memory_scope": "shared", **asked.options}
    limits = {"prompt_lookup_min": 3, "prompt_lookup_max": 5}
    about = {
        "plain": {},
        "specds": {**chains(8), "additional_config": {"specds": ours}},
        "bound": {**chains(8), "additional_config": {"specds": {**ours, **WHOLE}}},
        "n-grams": {"speculative_config": {**NGRAMS, **limits}},
    }
    usual = {"model": str(folder_of("smollm2")), "max_num_seqs": asked.rows}
    usual |= {"max_model_len": 2048, "disable_log_stats": False}
    rows, answers, order = [], {}, [way for way in WAYS if way in asked.ways]
    with ExitStack() as stack:
        engines = {way: stack.enter_context(Engine(**usual, **about[way])) for way in order}
        share_weights([engine.runner.model for engine in engines.values()])
        if "bound" in engines:
            verify_right_tokens(engines["bound"].proposer, answers)
        for engine in engines.values():  # the first steps cost more
            write(engine, HELLO, asked.new_tokens, asked, [{"regex": "Yes|No"}])
        for kind, asks, grammars in batches(asked):
            for way in sorted(order, key="bound".__eq__):  # the bound comes last
                if way in _WITH_MEMORY and (logged := log(kind)):
                    write(engines[way], logged, asked.new_tokens, asked)
                if asked.prompts_cached:
                    write(engines[way], asks, 1, asked, grammars)
                row = {"kind": kind, "way": way, "number": 0}
                rows.append(row | measured(engines[way], asks, asked, grammars, answers))
            order.reverse()
            rows.sort(key=lambda row: WAYS.index(row["way"]))
            print_tables([row for row in rows if row["kind"] == kind])
        print_tables(rows)
        if "specds" in engines:
            cut = engines["specds"].proposer.drafter.stats()["num_cut_tokens"]
            print(f"\n{cut} drafted tokens were forbidden, and vLLM cut them.")


def share_weights(models):
    """Let all models use the weights of the first: other copies are up to 18 % slower."""
    first, *others = (dict(model.named_modules()) for model in models)
    for modules in others:
        for name, module in modules.items():
            if hasattr(module, "cpu_linear"):
                module.cpu_linear, module.weight = first[name].cpu_linear, first[name].weight


def verify_right_tokens(proposer, answers):
    """Cut all drafts to the tokens that the answer to their prompt has."""
    chains = proposer.chains

    def right(num_left):
        drafts = chains(num_left)
        for name, draft in zip(proposer.runner.input_batch.req_ids, drafts, strict=False):
            request = proposer.runner.requests[name]
            answer = answers.get(tuple(request.prompt_token_ids), ())
            rest = answer[len(request.output_token_ids) :]
            pairs = enumerate(zip(draft, rest, strict=False))
            wrong = (at for at, (token, of_answer) in pairs if token != of_answer)
            del draft[next(wrong, len(rest)) :]
        return drafts

    proposer.chains = right


def measured(engine, asks, asked, grammars, answers):
    before = counts(engine)
    texts = write(engine, asks, asked.new_tokens, asked, grammars)
    prompts = (tuple(encode(engine.llm.get_tokenizer(), one)) for one in asks)
    answers.update(zip(prompts, texts, strict=True))
    drafted, accepted = (now - old for now, old in zip(counts(engine), before, strict=True))
    tokens = sum(map(len, texts))
    row = {"texts": texts, "seconds": engine.cpu_seconds, "tokens": tokens}
    return row | {"drafted": drafted, "accepted": accepted, "passes": tokens - accepted}


def write(engine, asks, new_tokens, asked, grammars=()):
    tokenizer = engine.llm.get_tokenizer()
    ids = [list(encode(tokenizer, one)) for one in asks]
    return engine.generate(ids, new_tokens, grammars, ignore_eos=False, **asked.sampling)


def batches(asked):
    """Yield a name of each batch, its conversations, and their grammars, if they have any.

    The requests of a kind alone are others than those at once, whose answers the memory has.
    """
    limit = asked.limit
    guided = [kind for kind in asked.kinds if kind in structured_kinds()]
    if guided:
        given = [each for kind in guided for each in requests(kind)[:limit]]
        texts = [of["frame"].replace("{}", text) for of, text in given]
        asks = [[{"role": "user", "content": text}] for text in texts]
        yield "grammars at once", asks, [grammar(of) for of, _ in given]
    free = [kind for kind in asked.kinds if kind not in guided]
    plain = [kind for kind in free if not log(kind)]
    if plain:
        yield "all kinds at once", [messages(kind)[n] for n in range(limit) for kind in plain], ()
    for kind in free if not asked.at_once else filter(log, free):
        yield kind, messages(kind) if log(kind) else messages(kind)[limit : 2 * limit], ()


def grammar(source):
    """Return the arguments of vLLM's structured output."""
    regex = source.get("regex")
    return {"regex": regex} if regex else {"json": json_schema(source["schema"])}


def counts(engine):
    """Return the numbers of drafted and of accepted tokens.

    vLLM's own metrics are those of the last engine of a process.
    """
    names = ("num_draft_tokens", "num_accepted_tokens")
    if hasattr(engine.proposer, "drafter"):
        return [engine.proposer.drafter.stats()[name] for name in names]
    values = {metric.name: getattr(metric, "value", 0) for metric in engine.llm.get_metrics()}
    has_metrics = engine.proposer is not None
    return [has_metrics * values.get(f"vllm:spec_decode_{name}", 0) for name in names]


if __name__ == "__main__":
    main()
