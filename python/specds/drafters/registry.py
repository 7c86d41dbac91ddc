"""The drafters by name and options, as the command line knows them: `aded:search=greedy`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

from specds._core import Datastore, Memory, ModelTables, Trigrams
from specds.drafters.aded import AdedConfig, AdedDrafter
from specds.drafters.fused import Effort, FusedConfig, FusedDrafter
from specds.drafters.n_grammys import NGrammysConfig, NGrammysDrafter, Strategy
from specds.drafters.prompt_lookup import PromptLookupDrafter
from specds.drafters.rest import RestConfig, RestDrafter
from specds.drafters.session import Drafter
from specds.models.tokenization import Tokenizer, vocab_size

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class DrafterInputs:
    """What drafters are made of; a drafter takes what it needs.

    Attributes:
        tokenizer: With it, `fused` remembers requests without a datastore too.
        memory: A file with earlier requests; it may be missing.
    """

    datastore: Datastore | None = None
    model: PreTrainedModel | None = None
    progress: Callable[[str, int, int], Any] | None = None
    tokenizer: Tokenizer | None = None
    memory: Path | None = None
    model_tables: bool = False

    def tables(self) -> ModelTables:
        from specds.drafters.model_tables import load_tables

        return load_tables(cast("PreTrainedModel", self.model), progress=self.progress)


Maker: TypeAlias = "Callable[[], Drafter]"
"""Makes a new drafter, which has learned nothing; what drafters can share is already loaded."""


def _fused(inputs: DrafterInputs, effort: Any = "auto") -> Maker:
    sources: dict[str, Any] = {"config": FusedConfig(effort=effort)}
    if inputs.model_tables:
        sources["model_tables"] = inputs.tables()
    if inputs.memory is not None:
        known = {"tokenizer": inputs.tokenizer, **sources}
        return partial(FusedDrafter.resume, inputs.memory, inputs.datastore, **known)

    def make() -> Drafter:
        memory = None
        if inputs.datastore is None and inputs.tokenizer is not None:
            memory = Memory(vocab_size(inputs.tokenizer))
        return FusedDrafter(inputs.datastore, memory=memory, **sources)

    return make


def _rest(inputs: DrafterInputs, max_match: int | str = RestConfig.max_match) -> Maker:
    datastore, config = cast("Datastore", inputs.datastore), RestConfig(max_match=int(max_match))
    return partial(RestDrafter, datastore, config)


def _aded(inputs: DrafterInputs, search: Any = "mcts", order: str = "3") -> Maker:
    datastore, config = cast("Datastore", inputs.datastore), AdedConfig(search=search)
    trigrams = Trigrams.build(datastore, order=int(order), progress=inputs.progress)
    return partial(AdedDrafter, trigrams, config, order=int(order))


def _n_grammys(inputs: DrafterInputs, strategy: Any = NGrammysConfig.strategy) -> Maker:
    tables = None if strategy == "context" else inputs.tables()
    return partial(NGrammysDrafter, tables, NGrammysConfig(strategy=strategy))


@dataclass(frozen=True)
class Kind:
    """A kind of drafter.

    Attributes:
        load: Takes the inputs, the models in its name, and its options by name.
        options: The values of each option, the default first.
        datastore: Whether it can use a datastore, or needs one.
        takes_tables: Whether it can also draft from the model's bigrams.
        takes_models: Whether its name lists models that draft.
    """

    load: Callable[..., Maker]
    options: dict[str, tuple[str, ...]] = field(default_factory=dict)
    datastore: Literal["unused", "used", "needed"] = "unused"
    needs_model: bool = False
    takes_tables: bool = False
    takes_models: bool = False


_MATCHES = tuple(str(length) for length in range(16, 0, -1))
KINDS = {
    "fused": Kind(_fused, {"effort": get_args(Effort)}, "used", takes_tables=True),
    "rest": Kind(_rest, {"max_match": _MATCHES}, "needed"),
    "aded": Kind(_aded, {"search": ("mcts", "greedy"), "order": ("3", "2", "4")}, "needed"),
    "prompt-lookup": Kind(lambda _: PromptLookupDrafter),
    "n-grammys": Kind(_n_grammys, {"strategy": get_args(Strategy)}, needs_model=True),
}
"""The drafters of `--drafter`; `specds.hierarchy` adds its own."""


@dataclass(frozen=True)
class DrafterName:
    """The name of a drafter, with its options.

    Attributes:
        value: The whole name, as it was written.
        models: The models that draft, the smallest first.
    """

    value: str
    kind: str
    options: dict[str, str] = field(default_factory=dict)
    models: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> DrafterName:
        """Reads ``NAME``, ``NAME:OPTION=VALUE`` or ``NAME:MODEL``; several with commas or ``+``."""
        name, _, tail = text.partition(":")
        if (name := name.strip()) not in KINDS:
            names = (f"{each}:MODEL,..." if KINDS[each].takes_models else each for each in KINDS)
            raise ValueError(f"no drafter `{text}`: choose of {', '.join(names)}")
        kind, options, models = KINDS[name], {}, []
        for part in filter(None, map(str.strip, re.split("[,+]", tail))):
            option, is_set, value = part.partition("=")
            if kind.takes_models and not is_set:
                models.append(part)
            elif option not in kind.options:
                known = [f"`{name}:{each}={values[-1]}`" for each, values in kind.options.items()]
                tried = f": try {' or '.join(known)}" if known else ", and takes none"
                raise ValueError(f"drafter `{name}` has no option `{option}`{tried}")
            elif value not in kind.options[option]:
                values = ", ".join(kind.options[option])
                raise ValueError(
                    f"option `{option}` of `{name}` is none of {values}: got `{value}`"
                )
            else:
                options[option] = value
        if kind.takes_models and not models:
            raise ValueError(
                f"`{text}` names no models: try `{name}:SMALL,MIDDLE`, the smallest first"
            )
        return cls(text, name, options, tuple(models))

    @property
    def takes_datastore(self) -> bool:
        """Whether it can use a datastore."""
        return KINDS[self.kind].datastore != "unused"

    @property
    def needs_model(self) -> bool:
        """Whether it needs the target model's weights."""
        return KINDS[self.kind].needs_model and self.options.get("strategy") != "context"


def require_inputs(
    name: DrafterName,
    *,
    datastore: bool,
    model: bool,
    memory: bool = False,
    model_tables: bool = False,
) -> None:
    """Refuses missing inputs, and those that the drafter cannot use."""
    kind = KINDS[name.kind]
    if memory and name.kind != "fused":
        raise ValueError(f"drafter `{name.value}` keeps no memory: leave out --memory")
    if model_tables and not kind.takes_tables:
        raise ValueError(f"drafter `{name.value}` takes no tables: leave out --model-tables")
    if kind.datastore == "needed" and not datastore:
        raise ValueError(f"drafter `{name.value}` needs a datastore: give one by --datastore")
    if name.needs_model and not model:
        raise ValueError(f"drafter `{name.value}` needs the target model: give one by --model")


def maker_of(name: DrafterName | str, inputs: DrafterInputs) -> Maker:
    """Loads what drafters of a name share; defaults are those of their paper."""
    name = DrafterName.parse(name) if isinstance(name, str) else name
    has_datastore, has_model = inputs.datastore is not None, inputs.model is not None
    require_inputs(name, datastore=has_datastore, model=has_model)
    return KINDS[name.kind].load(inputs, *name.models, **name.options)


def make_drafter(name: DrafterName | str, inputs: DrafterInputs) -> Drafter:
    """The drafter of a name."""
    return maker_of(name, inputs)()
