"""Published baselines as drafters of `specds bench acceptance`.

The package needs none of them: a baseline that is not installed is reported as absent, and one
whose drafts are wrong is rejected before it is measured.
"""

from functools import partial
from pathlib import Path

from baselines.prompt_lookup import open_prompt_lookup
from baselines.remote import open_remote
from specds.bench.drafters import ExternalDrafter

IN_THIS_PROCESS = {"transformers-prompt-lookup": ExternalDrafter(False, open_prompt_lookup)}
TAKES_DATASTORE = {
    "draftretriever": True,
    "arctic-suffix": False,
    "arctic-suffix-tree": False,
    "arctic-suffix-corpus": True,
    "sglang-ngram": False,
    "sglang-ngram-prompt": False,
    "sglang-ngram-corpus": True,
}
"""Baselines of another interpreter, and whether each indexes the text of a datastore."""


def baselines(python: Path | None) -> dict[str, ExternalDrafter]:
    return IN_THIS_PROCESS | {
        name: ExternalDrafter(takes_datastore, partial(open_remote, name, python))
        for name, takes_datastore in TAKES_DATASTORE.items()
    }
