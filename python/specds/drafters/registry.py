"""The drafters by name and options, as the command line knows them: `aded:search=greedy`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast, get_args

from specds._core import Datastore, Memory, Trigrams
from specds.drafters.aded import AdedConfig, AdedDrafter
from specds.drafters.fused import Effort, FusedConfig, FusedDrafter
from specds.drafters.n_grammys import NGrammysConfig, NGrammysDrafter, Strategy
from specds.drafters.prompt_lookup import PromptLookupDrafter
from specds.drafters.rest import RestConfig, RestDrafter
from specds.tokenization import vocab_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from specds.drafters.session import Drafter

OPTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "fused": {"effort": get_args(Effort)},
    "rest": {"match": tuple(map(str, range(16, 0, -1)))},
    "aded": {"search": ("mcts", "greedy"), "order": ("3", "2", "4")},
    "prompt-lookup": {},
    "n-grammys": {"parts": get_args(Strategy)},
}
"""The drafters of one model, and the values of each of their options, the usual one first.

``fused``: datastore, the request's own text, earlier requests, and what the model predicted at
other nodes; ``effort`` is how much of these it reads. ``rest``: the datastore alone, suffixes of
``match`` tokens at most. ``aded``: n-grams of an ``order`` that adapt to the text, by Monte Carlo
tree ``search``. ``prompt-lookup``: the request's own text alone. ``n-grammys``: that and the
model's bigrams, or one of these ``parts``.
"""


def read_options(
    name: str, parts: Iterable[str], known: dict[str, tuple[str, ...]]
) -> dict[str, str]:
    """Reads options such as ``order=2``.

    Raises:
        ValueError: There is no such option or value: says which there are.
    """
    options = {}
    for part in parts:
        key, _, value = part.partition("=")
        if key not in known:
            listed = " or ".join(f"`{name}:{option}={known[option][-1]}`" for option in known)
            tried = f": try {listed}" if known else ", and takes none"
            raise ValueError(f"drafter `{name}` has no option `{key}`{tried}")
        if value not in known[key]:
            values = ", ".join(known[key])
            raise ValueError(f"option `{key}` of `{name}` is none of {values}: got `{value}`")
        options[key] = value
    return options


def split_name(text: str) -> tuple[str, list[str]]:
    """The name of a drafter, and what stands behind its colon, parted by commas or ``+``."""
    name, _, tail = text.partition(":")
    return name.strip(), [part.strip() for part in re.split("[,+]", tail) if part.strip()]


@dataclass(frozen=True)
class DrafterName:
    """A drafter of one model that is not made yet.

    Attributes:
        value: All of it, as it was written.
        kind: One of `OPTIONS`.
        options: The options that are not the usual ones.
    """

    value: str
    kind: str
    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> DrafterName:
        """Reads ``NAME`` or ``NAME:OPTION=VALUE``.

        Commas or ``+`` part several options; where commas part drafters, only ``+`` does.

        Raises:
            ValueError: There is no such drafter, option or value.
        """
        kind, parts = split_name(text)
        if kind not in OPTIONS:
            raise ValueError(f"no drafter `{text}`: choose of {', '.join(OPTIONS)}")
        return cls(text, kind, tuple(read_options(kind, parts, OPTIONS[kind]).items()))

    @property
    def is_fused(self) -> bool:
        """Whether it drafts from all sources."""
        return self.kind == "fused"

    @property
    def needs_datastore(self) -> bool:
        """Whether it drafts nothing without a datastore."""
        return self.kind in ("rest", "aded")

    @property
    def takes_datastore(self) -> bool:
        """Whether it drafts from a datastore where there is one."""
        return self.needs_datastore or self.is_fused

    @property
    def needs_model(self) -> bool:
        """Whether it is made of the target model's weights."""
        return self.kind == "n-grammys" and ("parts", "context") not in self.options


@dataclass(frozen=True)
class DrafterInputs:
    """What drafters are made of; a drafter takes what it needs.

    Attributes:
        datastore: An open datastore.
        model: The target model.
        trigrams: Tri-grams; without them, those who need them count them in the datastore.
        progress: Called while that goes on: a stage, how far it has come, how far it has to go.
        weights: What the fused drafter starts from; by default the datastore's prior.
        tokenizer: Of all tokens; with it, `fused` remembers requests without a datastore too.
        memory: Where earlier requests are kept, a file that need not be there yet.
        model_tables: Whether the fused drafter drafts from the model's own tables.
    """

    datastore: Datastore | None = None
    model: PreTrainedModel | None = None
    trigrams: Trigrams | None = None
    progress: Callable[[str, int, int], Any] | None = None
    tokenizer: PreTrainedTokenizerBase | None = None
    memory: Path | None = None
    model_tables: bool = False
    weights: bytes | None = None


def require_inputs(
    name: DrafterName,
    *,
    datastore: bool,
    model: bool,
    memory: bool = False,
    model_tables: bool = False,
) -> None:
    """Checks that a drafter gets what it needs, and nothing that it has no use for, early.

    Raises:
        ValueError: Something that it needs is not there, or it has no use for something.
    """
    if memory and not name.is_fused:
        raise ValueError(f"drafter `{name.value}` keeps no memory: leave out --memory")
    if model_tables and not name.is_fused:
        raise ValueError(f"drafter `{name.value}` takes no tables: leave out --model-tables")
    if name.needs_datastore and not datastore:
        raise ValueError(f"drafter `{name.value}` needs a datastore: give one by --datastore")
    if name.needs_model and not model:
        raise ValueError(f"drafter `{name.value}` needs the target model: give one by --model")


def _fused(inputs: DrafterInputs, effort: Any = "auto") -> Drafter:
    tables = inputs.model if inputs.model_tables else None
    sources: dict[str, Any] = {
        "config": FusedConfig(effort=effort),
        "weights": inputs.weights,
        "model_tables": tables,
    }
    if inputs.memory is None:
        memory = None
        if inputs.datastore is None and inputs.tokenizer is not None:
            memory = Memory(vocab_size(inputs.tokenizer))
        return FusedDrafter(inputs.datastore, memory=memory, **sources)
    return FusedDrafter.resume(
        inputs.memory, inputs.datastore, tokenizer=inputs.tokenizer, **sources
    )


def _aded(inputs: DrafterInputs, search: Any = "mcts", order: str = "3") -> Drafter:
    source = cast("Datastore", inputs.datastore) if inputs.trigrams is None else inputs.trigrams
    config = AdedConfig(search=search)
    return AdedDrafter(source, config, order=int(order), progress=inputs.progress)


def _n_grammys(inputs: DrafterInputs, parts: Any = "mixed") -> Drafter:
    model = None if parts == "context" else inputs.model
    return NGrammysDrafter(model, NGrammysConfig(strategy=parts))


_MAKERS: dict[str, Callable[..., Drafter]] = {
    "fused": _fused,
    "rest": lambda inputs, match=16: RestDrafter(
        inputs.datastore, RestConfig(max_match=int(match))
    ),
    "aded": _aded,
    "prompt-lookup": lambda _: PromptLookupDrafter(),
    "n-grammys": _n_grammys,
}


def with_trigrams(name: DrafterName, inputs: DrafterInputs) -> DrafterInputs:
    """Counts the tri-grams that a drafter takes, so that several of them need not."""
    if name.kind != "aded" or inputs.trigrams is not None or inputs.datastore is None:
        return inputs
    order = int(dict(name.options).get("order", "3"))
    trigrams = Trigrams.build(inputs.datastore, order=order, progress=inputs.progress)
    return replace(inputs, trigrams=trigrams)


def make_drafter(name: DrafterName | str, inputs: DrafterInputs) -> Drafter:
    """The drafter of a name with its paper's defaults.

    Raises:
        ValueError: There is none, or it needs what `inputs` lack.
    """
    name = DrafterName.parse(name) if isinstance(name, str) else name
    datastore = inputs.datastore is not None or (
        name.kind == "aded" and inputs.trigrams is not None
    )
    require_inputs(name, datastore=datastore, model=inputs.model is not None)
    return _MAKERS[name.kind](inputs, **dict(name.options))
