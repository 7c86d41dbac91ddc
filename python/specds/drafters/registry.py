"""The drafters by name and options, as the command line knows them: `aded:search=greedy`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from specds._core import Datastore, Memory, ModelTables, Trigrams
from specds.drafters.aded import AdedConfig, AdedDrafter
from specds.drafters.fused import Effort, FusedConfig, FusedDrafter
from specds.drafters.n_grammys import NGrammysConfig, NGrammysDrafter, Strategy
from specds.drafters.prompt_lookup import PromptLookupDrafter
from specds.drafters.rest import RestConfig, RestDrafter
from specds.drafters.session import Drafter
from specds.tokenization import vocab_size

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def read_options(
    name: str, parts: Iterable[str], known: dict[str, tuple[str, ...]]
) -> dict[str, str]:
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
    """Splits ``NAME:PART,PART`` or ``NAME:PART+PART`` into the name and its parts."""
    name, _, tail = text.partition(":")
    return name.strip(), [part.strip() for part in re.split("[,+]", tail) if part.strip()]


@dataclass(frozen=True)
class DrafterInputs:
    """What drafters are made of; a drafter takes what it needs.

    Attributes:
        tokenizer: Of all tokens; with it, `fused` remembers requests without a datastore too.
        memory: Where earlier requests are kept, a file that need not be there yet.
        weights: What the fused drafter starts from; by default the datastore's prior.
    """

    datastore: Datastore | None = None
    model: PreTrainedModel | None = None
    progress: Callable[[str, int, int], Any] | None = None
    tokenizer: PreTrainedTokenizerBase | None = None
    memory: Path | None = None
    model_tables: bool = False
    weights: bytes | None = None
    _counted: dict[tuple[Datastore, int], Trigrams] = field(default_factory=dict, repr=False)

    def trigrams(self, order: int) -> Trigrams:
        """The tri-grams of the datastore; those counted last are kept for the next drafter."""
        datastore = cast("Datastore", self.datastore)
        if (datastore, order) not in self._counted:
            self._counted.clear()
            counted = Trigrams.build(datastore, order=order, progress=self.progress)
            self._counted[datastore, order] = counted
        return self._counted[datastore, order]

    def tables(self) -> ModelTables:
        from specds.drafters.model_tables import load_tables

        return load_tables(cast("PreTrainedModel", self.model), progress=self.progress)


def _fused(inputs: DrafterInputs, effort: Any = "auto") -> Drafter:
    sources: dict[str, Any] = {"config": FusedConfig(effort=effort), "weights": inputs.weights}
    if inputs.model_tables:
        sources["model_tables"] = inputs.tables()
    if inputs.memory is not None:
        return FusedDrafter.resume(
            inputs.memory, inputs.datastore, tokenizer=inputs.tokenizer, **sources
        )
    memory = None
    if inputs.datastore is None and inputs.tokenizer is not None:
        memory = Memory(vocab_size(inputs.tokenizer))
    return FusedDrafter(inputs.datastore, memory=memory, **sources)


def _rest(inputs: DrafterInputs, match: str = "16") -> Drafter:
    return RestDrafter(cast("Datastore", inputs.datastore), RestConfig(max_match=int(match)))


def _aded(inputs: DrafterInputs, search: Any = "mcts", order: str = "3") -> Drafter:
    trigrams = inputs.trigrams(int(order))
    return AdedDrafter(trigrams, AdedConfig(search=search), order=trigrams.order)


def _n_grammys(inputs: DrafterInputs, parts: Any = "mixed") -> Drafter:
    tables = None if parts == "context" else inputs.tables()
    return NGrammysDrafter(tables, NGrammysConfig(strategy=parts))


@dataclass(frozen=True)
class Kind:
    """A kind of drafter.

    Attributes:
        options: The values of each option, the default first.
        datastore: Whether it uses a datastore if there is one, or needs it.
    """

    make: Callable[..., Drafter]
    options: dict[str, tuple[str, ...]] = field(default_factory=dict)
    datastore: Literal["unused", "used", "needed"] = "unused"
    needs_model: bool = False


_MATCHES = tuple(str(length) for length in range(16, 0, -1))
KINDS = {
    "fused": Kind(_fused, {"effort": get_args(Effort)}, "used"),
    "rest": Kind(_rest, {"match": _MATCHES}, "needed"),
    "aded": Kind(_aded, {"search": ("mcts", "greedy"), "order": ("3", "2", "4")}, "needed"),
    "prompt-lookup": Kind(lambda _: PromptLookupDrafter()),
    "n-grammys": Kind(_n_grammys, {"parts": get_args(Strategy)}, needs_model=True),
}
"""The drafters of one model, as the help of `--drafter` tells them."""


@dataclass(frozen=True)
class DrafterName:
    """A drafter of one model that is not made yet.

    Attributes:
        value: All of it, as it was written.
    """

    value: str
    kind: str
    options: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> DrafterName:
        """Reads ``NAME`` or ``NAME:OPTION=VALUE``.

        Commas or ``+`` part several options; where commas part drafters, only ``+`` does.
        """
        kind, parts = split_name(text)
        if kind not in KINDS:
            raise ValueError(f"no drafter `{text}`: choose of {', '.join(KINDS)}")
        return cls(text, kind, read_options(kind, parts, KINDS[kind].options))

    @property
    def takes_datastore(self) -> bool:
        """Whether it drafts from a datastore where there is one."""
        return KINDS[self.kind].datastore != "unused"

    @property
    def needs_model(self) -> bool:
        """Whether it is made of the target model's weights."""
        return KINDS[self.kind].needs_model and self.options.get("parts") != "context"


def require_inputs(
    name: DrafterName,
    *,
    datastore: bool,
    model: bool,
    memory: bool = False,
    model_tables: bool = False,
) -> None:
    """Checks early that a drafter gets what it needs, and nothing that it cannot use."""
    if memory and name.kind != "fused":
        raise ValueError(f"drafter `{name.value}` keeps no memory: leave out --memory")
    if model_tables and name.kind != "fused":
        raise ValueError(f"drafter `{name.value}` takes no tables: leave out --model-tables")
    if KINDS[name.kind].datastore == "needed" and not datastore:
        raise ValueError(f"drafter `{name.value}` needs a datastore: give one by --datastore")
    if name.needs_model and not model:
        raise ValueError(f"drafter `{name.value}` needs the target model: give one by --model")


def make_drafter(name: DrafterName | str, inputs: DrafterInputs) -> Drafter:
    """The drafter of a name with its paper's defaults."""
    name = DrafterName.parse(name) if isinstance(name, str) else name
    has_datastore, has_model = inputs.datastore is not None, inputs.model is not None
    require_inputs(name, datastore=has_datastore, model=has_model)
    return KINDS[name.kind].make(inputs, **name.options)
