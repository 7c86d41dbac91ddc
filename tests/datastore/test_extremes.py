"""Extreme arguments at every call of the core: an answer or a typed error, never a panic.

Calls and parameters are read from the extension. Each name of a parameter needs a sample here.
"""

import inspect

import numpy as np
import pytest

from datastores import build
from gguf_models import write_model
from grammars import ForbiddenToken
from specds import _core as core

REFUSALS = (ValueError, TypeError, KeyError, OverflowError, OSError, MemoryError)
INTEGERS = [0, 1, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -1, 10**30]
NO_QUANTITIES = [float("nan"), float("-inf"), -1.0]
FLOATS = [*NO_QUANTITIES, float("inf"), 1e300, 5e-324, 0.0, 0.5]
TEXTS = ["", "x" * 2000, "\ud800", "\0", b"", b"x" * 500_000]
ARRAYS = [
    *([], [[]], [-1], [2**31], [10**30], [float("nan")], ["x"], [None], [[1], [1, 2]]),
    *(np.zeros(0), np.ones((2, 2), np.int64), np.zeros((0, 3), np.float32)),
    *(np.array([2**63], np.uint64), np.array([1.5]), np.array([True])),
    *(np.arange(40)[::-3], np.zeros(300_000, np.int64)),
]
EXTREMES = [*INTEGERS, *FLOATS, *TEXTS, *ARRAYS, None, object()]

VOCAB_SIZE = 50
ROW = [1, 2, 1]
TREE = core.TokenTree(ROW, [-1, 0, 1])
SAMPLES = {
    "bigram": [[1], [0]],
    "bigram_probs": [[0.5], [0.5]],
    "contexts": [ROW, ROW],
    "costs": [1.0, 1.1],
    "datastore": lambda path: core.Datastore(path),
    "documents": [ROW],
    "drafts": [TREE, None],
    "emitted": [ROW, None],
    "draft_stats": lambda _: core.DraftStats(),
    "cache": lambda path: core.ForwardCache(forward_model(path)),
    "file": lambda path: core.GgufFile(gguf(path)),
    "inputs": [(0, ROW, [-1, 0, 1], 2)],
    "length": 0,
    "model": lambda path: forward_model(path),
    "name": "output_norm.weight",
    "group": "task",
    "known": lambda path: core.Datastore(path),
    "lengths": [3],
    "max_depths": None,
    "max_memory": 1 << 28,
    "max_shard_tokens": 5000,
    "names": ["one", "two"],
    "numbers": np.zeros(17, np.int64),
    "parents": [-1, 0, 1],
    "passes": [(1, 0.1), (2, 0.2)],
    "path": lambda path: path,
    "patterns": [ROW, ROW],
    "probs": [0.5, 0.5, 0.5],
    "reported": np.zeros((1, 9), np.int64),
    "rules": None,
    "scores": np.zeros((2, 3), np.float32),
    "separator": VOCAB_SIZE,
    "sizes": [1, 2],
    "sessions": lambda path: list(sessions(path)),
    "sources": lambda path: [path],
    "starts": [0, 0],
    "suggestion": TREE,
    "states": np.ones((2, 32), np.float32),
    "tables": None,
    "tenant": "ann",
    "tenants": ["ann"],
    "tree": TREE,
    "trees": [TREE],
    "trigrams": lambda path: core.AdaptiveTrigrams(trigrams(path)),
    "uniforms": np.array([0.5, 0.5]),
    "unigram": [1, 0],
    "vocab_size": VOCAB_SIZE,
    "weights": np.ones((3, 32), np.float32),
}
for value, names in {
    0: "index parent position row source target",
    1: "num_nodes num_verified token",
    2: "k num_rows num_threads top_k width",
    8: "max_depth max_documents max_nodes n",
    500: "max_tokens",
    0.01: "min_prob seconds step_s step_seconds",
}.items():
    SAMPLES |= dict.fromkeys(names.split(), value)
SAMPLES |= dict.fromkeys(
    ["context", "of", "pattern", "predicted_output", "predictions", "token_ids", "tokens"], ROW
)
OF_ONE_CALL = {
    "AdaptiveTrigrams.trigrams": lambda path: trigrams(path),
    "DatastoreBuilder.path": lambda path: path.parent / "new",
    "DatastoreBuilder.overwrite": True,
    "DatastoreBuilder.add_documents.sources": ["a.py"],
    "ForwardCache.append.states": np.zeros(0, np.float32),
    "ForwardCache.commit.path": [],
    "ForwardCache.copy.from_row": 0,
    "ForwardCache.copy.to_row": 0,
    "ForwardModel.cache": None,
    "ForwardModel.cache_bytes.num_tokens": 8,
    "FusedState.context": True,
    "GgufFile.model_sizes.num_tokens": [8],
    "GgufFile.of_arrays.arrays": {"a": np.ones((2, 32), np.float32)},
    "GgufFile.of_arrays.fields": {"general.architecture": "llama"},
    "GgufFile.path": lambda path: gguf(path),
    "TokenTree.accept.predictions": [1, 2, 1, 2],
    "TokenTree.allowed.constraint": ForbiddenToken(1),
    "TokenTree.of_paths.known_tokens": VOCAB_SIZE,
    "TokenTree.of_paths.paths": [[1, 2], [1, 3]],
    "DraftSession.observe_predictions.predictions": lambda _: np.ones((4, 1), np.int64),
    "EngineDrafter.datastore": lambda path: path,
    "EngineDrafter.check.datastore": lambda path: path,
    "Memory.move_to.datastore": lambda path: path.parent / "moved",
    "EngineDrafter.observe_predictions.predictions": [[1]],
    "EngineDrafter.set_graph_sizes.draft_sizes": [2],
    "EngineDrafter.set_graph_sizes.sizes": [8],
    "EngineDrafter.sync.num_verified": [1],
    "EngineDrafter.suggest.probs": [[0.5]],
    "EngineDrafter.suggest.token_ids": [[1]],
    **{
        f"Memory.{name}.path": lambda path: path.parent / "memory"
        for name in (
            "compact",
            "forget_in",
            "info",
            "move_to",
            "open",
            "save",
            "share",
            "stores_at",
        )
    },
    "is_off.options": {"off": 1},
    "draw.probs": np.array([0.5, 0.5], np.float32),
    "engine.num_threads": 1,
    "merge.overwrite": True,
    "merges_of.scores": [0.5, None],
    "merges_of.tokens": ["a", "b"],
    "merge.path": lambda path: path.parent / "merged",
    "n_grammys_session.strategy": "context",
    "pack_rows.token_ids": [1],
    "pack_rows.width": 4,
}


def gguf(path):
    file = path.parent / "model.gguf"
    return file if file.exists() else write_model(file, "llama", ("Q4_0",))


def forward_model(path):
    return core.ForwardModel(core.GgufFile(gguf(path)), instructions="portable")


def trigrams(path):
    return core.Trigrams.build(core.Datastore(path))


def sessions(path):
    store = core.Datastore(path)
    yield core.rest_session(store)
    yield core.prompt_lookup_session()
    yield core.n_grammys_session(None, strategy="context")
    yield core.aded_session(core.AdaptiveTrigrams(trigrams(path)))
    session = core.FusedState(store).session()
    session.observe(ROW)
    yield session


def engine(
    memory_bytes=1 << 20,
    memory_tenant_bytes=1 << 20,
    memory_max_age=60.0,
    max_context=100,
    num_threads=1,
    min_prob=0.1,
    step_time=1.0,
    effort="low",
):
    """An engine's drafter with these options."""
    config = {name: value for name, value in locals().items() if name != "step_time"}
    config["step_cost"] = [[1, step_time], [8, 2 * step_time]]
    return core.EngineDrafter(**config, vocab_size=VOCAB_SIZE)


def builders(path):
    options = {"vocab_size": VOCAB_SIZE, "separator": VOCAB_SIZE, "overwrite": True}
    builder = core.DatastoreBuilder(path.parent / "new", **options)
    builder.add_documents(ROW, [3], ["a.py"])
    yield builder


def budgets(_):
    yield core.NodeBudget(core.DraftStats(), [1.0, 1.1], 2)


OF = {
    "NodeBudget": budgets,
    "Datastore": lambda path: [core.Datastore(path)],
    "ForwardCache": lambda path: [core.ForwardCache(forward_model(path))],
    "ForwardModel": lambda path: [forward_model(path)],
    "GgufFile": lambda path: [core.GgufFile(gguf(path))],
    "DatastoreBuilder": builders,
    "DraftSession": sessions,
    "EngineDrafter": lambda _: [engine()],
    "FusedState": lambda path: [core.FusedState(core.Datastore(path))],
    "Memory": lambda _: [core.Memory(VOCAB_SIZE)],
    "Session": lambda _: [core.Session()],
    "TokenTree": lambda _: [core.TokenTree(ROW, [-1, 0, 1])],
    "Trigrams": lambda path: [trigrams(path)],
}


def use(made):
    """Use the object that a call returned."""
    match made:
        case core.NodeBudget():
            made.choose([TREE, TREE], 0.01)
        case core.Datastore():
            made.lookup(ROW)
        case core.DatastoreBuilder():
            made.add_documents(ROW, [3])
            made.finish()
        case core.DraftSession():
            made.observe([1, 2, 3, 1, 2])
            made.draft(16)
        case core.EngineDrafter():
            made.sync([[1, 2, 3, 1, 2], [4, 5, 4]], ["a", "b"])
            made.draft_trees(4)
        case core.FusedState():
            use(made.session())
        case core.Memory():
            made.insert("ann", [1] * 100)
        case core.Trigrams():
            made.words(ROW[:2])


# Invalid times are ignored, and the base class does nothing.
LENIENT = {"EngineDrafter.observe_step_time", "NodeBudget.learn"}
LENIENT |= {"Session.draft", "Session.set_step_time"}


def calls():
    """Yield the name of each call, the class of its objects if it is a method, and the function."""
    yield "engine", None, engine
    for name in core.__all__:
        value = getattr(core, name)
        if not callable(value) or (isinstance(value, type) and issubclass(value, Exception)):
            continue
        yield name, None, value
        if isinstance(value, type):
            for method in filter(lambda method: not method.startswith("_"), dir(value)):
                found = inspect.getattr_static(value, method)
                # Some methods of a session are written in Python.
                if callable(getattr(value, method)) and not inspect.isfunction(found):
                    is_static = isinstance(found, staticmethod)
                    of = None if is_static else name
                    yield f"{name}.{method}", of, getattr(value, method)


CALLS = {
    name: (of, function)
    for name, of, function in calls()
    if set(inspect.signature(function).parameters) - {"self"} and name != "DraftSession"
}


RECORDS = {"DatastoreBuilder": "build", "EngineDrafter": "engine", "FusedState": "fused"}
RECORDS |= {"EngineDrafter.check": "engine", "Trigrams.build": "trigrams"}
"""Records whose options are the keywords of a call of another name."""

ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
"""Kinds of parameters that a subclass of `Session` may define."""


def parameters(name):
    for parameter in inspect.signature(CALLS[name][1]).parameters.values():
        record = RECORDS.get(name, name.removesuffix("_session"))
        if parameter.kind is parameter.VAR_KEYWORD and record in core.DEFAULTS:
            for option, default in core.DEFAULTS[record].items():
                yield inspect.Parameter(option, parameter.KEYWORD_ONLY, default=default)
        elif parameter.name != "self" and parameter.kind not in ANY_NUMBER:
            yield parameter


def sample(path, call, parameter):
    for samples, key in ((OF_ONE_CALL, f"{call}.{parameter.name}"), (SAMPLES, parameter.name)):
        if key in samples:
            return samples[key](path) if callable(samples[key]) else samples[key]
    assert parameter.default is not parameter.empty, f"give a sample of {parameter.name}"
    return parameter.default


def ask(path, name, changed, extreme):
    """Call a function with one argument replaced, on a new object."""
    of, function = CALLS[name]
    for instance in OF[of](path) if of else [None]:
        arguments = {
            parameter.name: extreme if parameter.name == changed else sample(path, name, parameter)
            for parameter in parameters(name)
        }
        use(function(*([instance] if of else []), **arguments))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    made = tmp_path_factory.mktemp("extremes") / "d"
    rows = np.random.default_rng(0).integers(0, VOCAB_SIZE, (60, 20)).tolist()
    build(made, rows, vocab_size=VOCAB_SIZE, separator=VOCAB_SIZE, max_shard_tokens=500)
    core.Memory(VOCAB_SIZE).save(made.parent / "memory")
    return made


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # numpy warns too
@pytest.mark.filterwarnings("ignore:.*'np.bool_' scalars")  # numpy 1.24 warns, 2 raises
@pytest.mark.parametrize("name", CALLS)
def test_extreme_arguments_are_answered_or_rejected(tmp_path, monkeypatch, path, name):
    monkeypatch.chdir(tmp_path)
    ask(path, name, None, None)
    for parameter in parameters(name):
        answered = []
        for extreme in EXTREMES:
            try:
                ask(path, name, parameter.name, extreme)
                answered.append(extreme)
            except REFUSALS:
                pass
        kind = None if name in LENIENT else type(sample(path, name, parameter))
        for impossible in {int: [10**30], float: NO_QUANTITIES}.get(kind, []):
            assert not any(impossible is extreme for extreme in answered), parameter.name
    core.Datastore(path).verify()
