"""The drafters by name, as the command line knows them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

from specds._core import Datastore, Memory, Trigrams
from specds.drafters.aded import AdedConfig, AdedDrafter
from specds.drafters.fused import Effort, FusedConfig, FusedDrafter
from specds.drafters.n_grammys import NGrammysConfig, NGrammysDrafter
from specds.drafters.prompt_lookup import PromptLookupDrafter
from specds.drafters.rest import RestConfig, RestDrafter
from specds.tokenization import vocab_size

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike
    from pathlib import Path

    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from specds.drafters.n_grammys import Strategy
    from specds.drafters.session import Drafter


class DrafterName(str, Enum):
    """The drafters that the command line knows.

    ``fused``: datastore, the request's own text, earlier requests, and what the model predicted at
    other nodes; ``fused-low``, ``fused-normal`` and ``fused-high`` read as much of these as their
    effort says, whatever a step of the model takes. ``rest``: the datastore alone, its nodes ranked
    by an even sample of 256 occurrences. ``rest-paper``: the same ranked by every occurrence, 64
    nodes, as the paper's text has it. ``aded``: tri-grams that adapt to the text, by Monte Carlo
    tree search; ``aded-greedy``, ``aded-bigram`` and ``aded-4gram`` are its ablations.
    ``prompt-lookup``: the request's own text alone.
    ``n-grammys``: the request's own text and the model's bigrams; ``n-grammys-context``,
    ``n-grammys-bigram``, ``n-grammys-extended-bigram`` and ``n-grammys-unigram`` are its parts.
    """

    FUSED = "fused"
    FUSED_LOW = "fused-low"
    FUSED_NORMAL = "fused-normal"
    FUSED_HIGH = "fused-high"
    REST = "rest"
    REST_PAPER = "rest-paper"
    ADED = "aded"
    ADED_GREEDY = "aded-greedy"
    ADED_BIGRAM = "aded-bigram"
    ADED_4GRAM = "aded-4gram"
    PROMPT_LOOKUP = "prompt-lookup"
    N_GRAMMYS = "n-grammys"
    N_GRAMMYS_CONTEXT = "n-grammys-context"
    N_GRAMMYS_BIGRAM = "n-grammys-bigram"
    N_GRAMMYS_EXTENDED_BIGRAM = "n-grammys-extended-bigram"
    N_GRAMMYS_UNIGRAM = "n-grammys-unigram"

    @property
    def is_fused(self) -> bool:
        """Whether it drafts from all sources, with whatever effort."""
        return self is DrafterName.FUSED or self in _EFFORTS

    @property
    def needs_datastore(self) -> bool:
        """Whether it drafts nothing without a datastore, or without tri-grams if it takes them."""
        return self in {DrafterName.REST, DrafterName.REST_PAPER} or self in _ADED

    @property
    def takes_trigrams(self) -> bool:
        """Whether it drafts from tri-grams where there are any."""
        return self in _ADED or self.is_fused

    @property
    def takes_datastore(self) -> bool:
        """Whether it drafts from a datastore where there is one."""
        return self.needs_datastore or self.is_fused

    @property
    def needs_model(self) -> bool:
        """Whether it is made of the target model's weights."""
        return self in _STRATEGIES and self is not DrafterName.N_GRAMMYS_CONTEXT


_EFFORTS: dict[DrafterName, Effort] = {
    DrafterName.FUSED_LOW: "low",
    DrafterName.FUSED_NORMAL: "normal",
    DrafterName.FUSED_HIGH: "high",
}

_ADED: dict[DrafterName, tuple[int, Literal["mcts", "greedy"]]] = {
    DrafterName.ADED: (3, "mcts"),
    DrafterName.ADED_GREEDY: (3, "greedy"),
    DrafterName.ADED_BIGRAM: (2, "mcts"),
    DrafterName.ADED_4GRAM: (4, "mcts"),
}

_STRATEGIES: dict[DrafterName, Strategy] = {
    DrafterName.N_GRAMMYS: "mixed",
    DrafterName.N_GRAMMYS_CONTEXT: "context",
    DrafterName.N_GRAMMYS_BIGRAM: "bigram",
    DrafterName.N_GRAMMYS_EXTENDED_BIGRAM: "extended-bigram",
    DrafterName.N_GRAMMYS_UNIGRAM: "unigram",
}


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
        recycled: Whether the fused drafter drafts from what the model predicted at other nodes.
        effort: How much of its sources ``fused`` reads.
    """

    datastore: Datastore | None = None
    model: PreTrainedModel | None = None
    trigrams: Trigrams | None = None
    progress: Callable[[str, int, int], Any] | None = None
    tokenizer: PreTrainedTokenizerBase | None = None
    memory: Path | None = None
    model_tables: bool = False
    weights: bytes | None = None
    recycled: bool = True
    effort: Effort = "auto"


def require_inputs(
    name: DrafterName,
    *,
    datastore: bool,
    model: bool,
    trigrams: bool = False,
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
    if trigrams and not name.takes_trigrams:
        raise ValueError(f"drafter `{name.value}` takes no tri-grams: leave out --trigrams")
    if name.needs_datastore and not (datastore or trigrams):
        other = ", or tri-grams by --trigrams" if name.takes_trigrams else ""
        raise ValueError(
            f"drafter `{name.value}` needs a datastore: give one by --datastore{other}"
        )
    if name.needs_model and not model:
        raise ValueError(f"drafter `{name.value}` needs the target model: give one by --model")


def _fused(inputs: DrafterInputs) -> Drafter:
    tables = inputs.model if inputs.model_tables else None
    sources: dict[str, Any] = {
        "config": FusedConfig(recycled=inputs.recycled, effort=inputs.effort),
        "weights": inputs.weights,
        "model_tables": tables,
        "trigrams": inputs.trigrams,
    }
    if inputs.memory is None:
        memory = None
        if inputs.datastore is None and inputs.tokenizer is not None:
            memory = Memory(vocab_size(inputs.tokenizer))
        return FusedDrafter(inputs.datastore, memory=memory, **sources)
    return FusedDrafter.resume(
        inputs.memory, inputs.datastore, tokenizer=inputs.tokenizer, **sources
    )


def _fused_with(effort: Effort, inputs: DrafterInputs) -> Drafter:
    return _fused(replace(inputs, effort=effort))


def _rest(inputs: DrafterInputs) -> Drafter:
    return RestDrafter(cast("Datastore", inputs.datastore))


def _rest_paper(inputs: DrafterInputs) -> Drafter:
    return RestDrafter(cast("Datastore", inputs.datastore), RestConfig.paper())


def _aded(order: int, search: Literal["mcts", "greedy"], inputs: DrafterInputs) -> Drafter:
    source = cast("Datastore", inputs.datastore) if inputs.trigrams is None else inputs.trigrams
    return AdedDrafter(source, AdedConfig(search=search), order=order, progress=inputs.progress)


def _prompt_lookup(_: DrafterInputs) -> Drafter:
    return PromptLookupDrafter()


def _n_grammys(strategy: Strategy, inputs: DrafterInputs) -> Drafter:
    model = None if strategy == "context" else inputs.model
    return NGrammysDrafter(model, NGrammysConfig(strategy=strategy))


_MAKERS: dict[DrafterName, Callable[[DrafterInputs], Drafter]] = {
    DrafterName.FUSED: _fused,
    DrafterName.REST: _rest,
    DrafterName.REST_PAPER: _rest_paper,
    DrafterName.PROMPT_LOOKUP: _prompt_lookup,
    **{name: partial(_fused_with, effort) for name, effort in _EFFORTS.items()},
    **{name: partial(_aded, *ablation) for name, ablation in _ADED.items()},
    **{name: partial(_n_grammys, strategy) for name, strategy in _STRATEGIES.items()},
}


def with_trigrams(name: DrafterName, inputs: DrafterInputs) -> DrafterInputs:
    """Counts the tri-grams that a drafter takes, so that several of them need not."""
    if name not in _ADED or inputs.trigrams is not None or inputs.datastore is None:
        return inputs
    order, _ = _ADED[name]
    trigrams = Trigrams.build(inputs.datastore, order=order, progress=inputs.progress)
    return replace(inputs, trigrams=trigrams)


def make_drafter(name: DrafterName, inputs: DrafterInputs) -> Drafter:
    """The drafter of a name with its paper's defaults.

    Raises:
        ValueError: It needs what `inputs` lack.
    """
    datastore, model = inputs.datastore is not None, inputs.model is not None
    trigrams = inputs.trigrams is not None
    require_inputs(name, datastore=datastore, model=model, trigrams=trigrams)
    return _MAKERS[name](inputs)


def open_drafter(
    name: DrafterName,
    datastore: str | PathLike[str] | None = None,
    model: PreTrainedModel | None = None,
) -> Drafter:
    """Makes a drafter of a datastore's path.

    Raises:
        FileNotFoundError: There is nothing at the path.
        FormatError: What is there cannot be read.
        ValueError: The drafter needs what is not given.
    """
    opened = None if datastore is None else Datastore.open(datastore)
    return make_drafter(name, DrafterInputs(opened, model))
