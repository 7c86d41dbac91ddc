"""The drafters by name, as the command line knows them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, cast

from specds._core import Datastore
from specds.drafters.fused import FusedDrafter
from specds.drafters.rest import RestDrafter

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from transformers import PreTrainedModel

    from specds.drafters.protocol import Drafter


class DrafterName(str, Enum):
    """The drafters that the command line knows."""

    FUSED = "fused"
    REST = "rest"

    @property
    def needs_datastore(self) -> bool:
        """Whether it drafts nothing without a datastore."""
        return self in {DrafterName.FUSED, DrafterName.REST}

    @property
    def takes_datastore(self) -> bool:
        """Whether it drafts from a datastore where there is one."""
        return self.needs_datastore or self is DrafterName.FUSED

    @property
    def needs_model(self) -> bool:
        """Whether it is made of the target model's weights."""
        return False


@dataclass(frozen=True)
class DrafterInputs:
    """What drafters are made of; a drafter takes what it needs.

    Attributes:
        datastore: An open datastore.
        model: The target model.
    """

    datastore: Datastore | None = None
    model: PreTrainedModel | None = None


def require_inputs(name: DrafterName, *, datastore: bool, model: bool) -> None:
    """Checks that a drafter gets what it needs, before anything is loaded.

    Raises:
        ValueError: Something that it needs is not there.
    """
    if name.needs_datastore and not datastore:
        raise ValueError(f"drafter `{name.value}` needs a datastore: give one by --datastore")
    if name.needs_model and not model:
        raise ValueError(f"drafter `{name.value}` needs the target model: give one by --model")


def _fused(inputs: DrafterInputs) -> Drafter:
    return FusedDrafter(cast("Datastore", inputs.datastore))


def _rest(inputs: DrafterInputs) -> Drafter:
    return RestDrafter(cast("Datastore", inputs.datastore))


_MAKERS: dict[DrafterName, Callable[[DrafterInputs], Drafter]] = {
    DrafterName.FUSED: _fused,
    DrafterName.REST: _rest,
}


def make_drafter(name: DrafterName, inputs: DrafterInputs) -> Drafter:
    """The drafter of a name with its paper's defaults.

    Raises:
        ValueError: It needs what `inputs` lack.
    """
    datastore, model = inputs.datastore is not None, inputs.model is not None
    require_inputs(name, datastore=datastore, model=model)
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
