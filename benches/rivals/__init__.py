"""Rivals: what others published to draft with, as engines of the same replay.

The package needs none of them: an engine that is not installed is reported as absent, and one whose
answers are wrong is refused before it is timed.
"""

from functools import partial
from pathlib import Path

from rivals.prompt_lookup import open_prompt_lookup
from rivals.remote import open_remote
from specds.bench.engines import Entrant

IN_THIS_PROCESS = {"transformers-prompt-lookup": Entrant(False, open_prompt_lookup)}
TAKES_DATASTORE = {
    "draftretriever": True,
    "arctic-suffix": False,
    "arctic-suffix-tree": False,
    "arctic-suffix-corpus": True,
    "sglang-ngram": False,
    "sglang-ngram-prompt": False,
    "sglang-ngram-corpus": True,
}
"""Those that run in another interpreter, and whether each indexes the text of a datastore."""


def entrants(python: Path | None) -> dict[str, Entrant]:
    """The rivals as the replay takes them, from an interpreter that has them."""
    return IN_THIS_PROCESS | {
        name: Entrant(takes_datastore, partial(open_remote, name, python))
        for name, takes_datastore in TAKES_DATASTORE.items()
    }
