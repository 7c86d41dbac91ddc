"""Drafters by name and options, such as `aded:search=greedy`, for the command line."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast, get_args

from specds._core import Datastore, ModelTables, Trigrams
from specds.drafters.fused import Effort, FusedConfig, FusedDrafter
from specds.drafters.papers.aded import AdedConfig, AdedDrafter
from specds.drafters.papers.n_grammys import NGrammysConfig, NGrammysDrafter, Strategy
from specds.drafters.papers.prompt_lookup import PromptLookupDrafter
from specds.drafters.papers.rest import RestConfig, RestDrafter
from specds.drafters.session import Drafter, tables_of
from specds.models.tokenization import Tokenizer, vocab_size

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specds.models.resolve import ModelRef


@dataclass(frozen=True)
class DrafterInputs:
    """Inputs of all drafters; each drafter takes its own.

    Attributes:
        tokenizer: Lets `fused` keep earlier requests without a datastore too.
        memory: Folder or URL of earlier requests, which may not exist yet.
    """

    datastore: Datastore | None = None
    model: PreTrainedModel | None = None
    progress: Callable[[str, int, int], Any] | None = None
    tokenizer: Tokenizer | None = None
    memory: str | None = None
    model_tables: bool = False

    def tables(self) -> ModelTables:
        return tables_of(cast("PreTrainedModel", self.model), progress=self.progress)


Maker: TypeAlias = "Callable[[], Drafter]"
"""Function that makes a new drafter, without any state; shared inputs are already loaded."""


def _fused(inputs: DrafterInputs, effort: Any = "auto") -> Maker:
    sources: dict[str, Any] = {"config": FusedConfig(effort=effort)}
    if inputs.model_tables:
        sources["model_tables"] = inputs.tables()
    if inputs.memory is not None:
        known = {"tokenizer": inputs.tokenizer, **sources}
        return partial(FusedDrafter.resume, inputs.memory, inputs.datastore, **known)
    size = None if inputs.tokenizer is None else vocab_size(inputs.tokenizer)
    return partial(FusedDrafter, inputs.datastore, vocab_size=size, **sources)


def _rest(inputs: DrafterInputs, max_match: int | str = RestConfig.max_match) -> Maker:
    datastore, config = cast("Datastore", inputs.datastore), RestConfig(max_match=int(max_match))
    return partial(RestDrafter, datastore, config)


def _aded(
    inputs: DrafterInputs, search: Any = "mcts", order: str = "3", adaptive: str = "yes"
) -> Maker:
    datastore = cast("Datastore", inputs.datastore)
    config = AdedConfig(search=search, adaptive=adaptive == "yes")
    trigrams = Trigrams.build(datastore, order=int(order), progress=inputs.progress)
    return partial(AdedDrafter, trigrams, config, order=int(order))


def _n_grammys(inputs: DrafterInputs, strategy: Any = NGrammysConfig.strategy) -> Maker:
    tables = None if strategy == "context" else inputs.tables()
    return partial(NGrammysDrafter, tables, NGrammysConfig(strategy=strategy))


@dataclass(frozen=True)
class DrafterKind:
    """Kind of drafter.

    Attributes:
        load: Takes the inputs, the models in its name, and its options by name.
        options: Values of each option, the default first.
        required: Inputs that it needs, by field of `DrafterInputs`.
        optional: Inputs that it can use.
        takes_models: Whether its name lists models that draft.
    """

    load: Callable[..., Maker]
    options: dict[str, tuple[str, ...]] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    takes_models: bool = False


KINDS = {
    "fused": DrafterKind(
        _fused, {"effort": get_args(Effort)}, optional=("datastore", "memory", "model_tables")
    ),
    "rest": DrafterKind(
        _rest, {"max_match": tuple(map(str, range(16, 0, -1)))}, required=("datastore",)
    ),
    "aded": DrafterKind(
        _aded,
        {"search": ("mcts", "greedy"), "order": ("3", "2", "4"), "adaptive": ("yes", "no")},
        required=("datastore",),
    ),
    "prompt-lookup": DrafterKind(lambda _: PromptLookupDrafter),
    "n-grammys": DrafterKind(_n_grammys, {"strategy": get_args(Strategy)}, required=("model",)),
}
"""Drafters of `--drafter`; `specds.papers` adds its own."""


@dataclass(frozen=True)
class DrafterName:
    """Name of a drafter, with its options.

    Attributes:
        value: The whole name as given.
        models: Models that draft, the smallest first: names, or what they were resolved to.
    """

    value: str
    kind: str
    options: dict[str, str] = field(default_factory=dict)
    models: tuple[str | ModelRef, ...] = ()

    @classmethod
    def parse(cls, text: str) -> DrafterName:
        """Parse ``NAME``, ``NAME:OPTION=VALUE`` or ``NAME:MODEL``, with commas or ``+`` between."""
        name, _, tail = text.partition(":")
        if (name := name.strip()) not in KINDS:
            names = (f"{each}:MODEL,..." if KINDS[each].takes_models else each for each in KINDS)
            raise ValueError(f"unknown drafter `{text}`: choose from {', '.join(names)}")
        kind, options, models = KINDS[name], {}, []
        for part in filter(None, map(str.strip, re.split("[,+]", tail))):
            option, is_set, value = part.partition("=")
            if kind.takes_models and not is_set:
                models.append(part)
            elif option not in kind.options:
                known = [f"`{name}:{each}={values[-1]}`" for each, values in kind.options.items()]
                tried = f": try {' or '.join(known)}" if known else " and takes none"
                raise ValueError(f"drafter `{name}` has no option `{option}`{tried}")
            elif value not in kind.options[option]:
                values = ", ".join(kind.options[option])
                raise ValueError(
                    f"option `{option}` of `{name}` must be one of {values}, got `{value}`"
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
        kind = KINDS[self.kind]
        return "datastore" in kind.required + kind.optional

    @property
    def needs_model(self) -> bool:
        """Return whether it needs the target model's weights."""
        return "model" in KINDS[self.kind].required and self.options.get("strategy") != "context"


def require_inputs(
    name: DrafterName,
    *,
    datastore: bool,
    model: bool,
    memory: bool = False,
    model_tables: bool = False,
) -> None:
    """Raise for missing inputs, and for a memory or tables that the drafter cannot use."""
    kind = KINDS[name.kind]
    for given, each in ((memory, "memory"), (model_tables, "model_tables")):
        if given and each not in kind.optional:
            option = f"--{each.replace('_', '-')}"
            raise ValueError(f"drafter `{name.value}` does not support {option}: leave it out")
    if "datastore" in kind.required and not datastore:
        raise ValueError(f"drafter `{name.value}` needs a datastore: pass one with --datastore")
    if name.needs_model and not model:
        raise ValueError(f"drafter `{name.value}` needs the target model: pass it with --model")


def maker_of(name: DrafterName | str, inputs: DrafterInputs) -> Maker:
    """Load the inputs that drafters of a name share; defaults are those of their paper."""
    name = DrafterName.parse(name) if isinstance(name, str) else name
    has_datastore, has_model = inputs.datastore is not None, inputs.model is not None
    require_inputs(name, datastore=has_datastore, model=has_model)
    return KINDS[name.kind].load(inputs, *name.models, **name.options)


def make_drafter(name: DrafterName | str, inputs: DrafterInputs) -> Drafter:
    return maker_of(name, inputs)()
