"""The fused drafter: every source in one tree, each by what it has proved to be worth."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specds._core import SOURCES, Datastore, FusedState, Memory, fit_weights
from specds.drafters.protocol import begin

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

    import numpy as np

    from specds._core import DraftSession


@dataclass(frozen=True)
class FusedConfig:
    """Which sources are used besides a datastore and a memory, and whether the drafter learns.

    Attributes:
        context: The request's own text.
        recycled: What the model itself predicted at other nodes, rejected ones included. It takes
            the model's 8 likeliest tokens at every node.
        learns: Whether what is accepted changes what the sources are held to be worth.
    """

    context: bool = True
    recycled: bool = False
    learns: bool = True


class FusedDrafter:
    """Drafts from all sources at once: a datastore, the request's own text, earlier requests.

    What each source says at each node of the tree is mixed by what that kind of evidence has been
    worth, which is learned from what the model accepts, and the tree grows best-first by the
    probability of its paths. A node's probability is calibrated: 1 plus the sum over a tree is the
    acceptance length to be expected of it. Sessions share what they learn. Safe to share by
    threads.

    Args:
        datastore: An open datastore, or the path of one.
        config: What is used besides.
        memory: What earlier requests said; every session adds its text when it finishes. By default
            an empty one where there is a datastore, and none where there is not.
        weights: What `weights` or `specds.fit_weights` returned; by default the datastore's prior,
            and without one nothing is learned yet.

    Raises:
        FileNotFoundError: There is nothing at the path.
        FormatError: What is there cannot be read.
        ValueError: The memory is for another vocabulary, or `weights` are not weights.
    """

    def __init__(
        self,
        datastore: Datastore | str | PathLike[str] | None = None,
        config: FusedConfig | None = None,
        memory: Memory | None = None,
        weights: bytes | None = None,
    ) -> None:
        if datastore is not None and not isinstance(datastore, Datastore):
            datastore = Datastore.open(datastore)
        if memory is None and datastore is not None:
            memory = Memory(datastore.vocab_size)
        self.datastore = datastore
        self.config = config or FusedConfig()
        self.memory = memory
        self._state = FusedState(
            datastore,
            memory,
            context=self.config.context,
            recycled=self.config.recycled,
            learns=self.config.learns,
            weights=weights,
        )

    @property
    def vocab_size(self) -> int | None:
        """The vocabulary size of the datastore or of the memory; None without both."""
        source = self.datastore or self.memory
        return None if source is None else source.vocab_size

    def session(
        self,
        prompt_ids: Sequence[int] | np.ndarray,
        tenant: str = "",
        predicted_output: Sequence[int] | np.ndarray | None = None,
    ) -> DraftSession:
        """Starts a request.

        Args:
            prompt_ids: Its prompt.
            tenant: Whose earlier requests it drafts from, and whose memory it goes into.
            predicted_output: What the model is expected to write, such as a text to be edited.

        Raises:
            ValueError: The prompt is empty or holds an id outside the vocabulary.
        """
        return begin(self._state.session(tenant, predicted_output), prompt_ids)

    def weights(self) -> bytes:
        """What was learned so far; `Memory.save` keeps it beside the texts."""
        return self._state.weights()

    def stats(self) -> dict[str, int]:
        """How many accepted tokens each source drafted, where it drafted any."""
        accepted = zip(SOURCES, self._state.accepted(), strict=True)
        return {source: number for source, number in accepted if number}


def read_weights(name: str | None) -> bytes | None:
    """The weights of the file `name`, as `FusedDrafter` takes them.

    Args:
        name: A file that `specds fit` wrote; ``none``: weights that have learned nothing; None:
            whatever the datastore brings.

    Raises:
        OSError: There is no such file.
    """
    if name is None:
        return None
    return fit_weights(None, []) if name == "none" else Path(name).read_bytes()
