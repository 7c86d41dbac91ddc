"""The folder `custom_generate`, with which transformers uses specds without further code."""

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from specds._core import Datastore, __version__
from specds.drafters.fused import FusedDrafter
from specds.drafters.session import Drafter
from specds.generation.options import Options
from specds.models.tokenization import check_tokenizer
from specds.transformers.acceleration import generate_by

_OPTIONS = {item.name for item in fields(Options)} - {"drafter"}
_MARK = "made by `specds export-generate`"
_PROGRAM = '''"""Generates with specds; {mark}."""

from specds.transformers.custom_generate import generate_of_folder

DATASTORE = {datastore!r}
ON_UNSUPPORTED = {on_unsupported!r}


def generate(*args, model, **arguments):
    """Generate with the arguments of `model.generate` and of `generate_of_folder`."""
    settings = {{"datastore": DATASTORE, "on_unsupported": ON_UNSUPPORTED}} | arguments
    return generate_of_folder(model, *args, **settings)
'''


def export_generate(
    folder: str | PathLike[str],
    datastore: str | PathLike[str] | None = None,
    *,
    on_unsupported: str = "refuse",
) -> Path:
    """Write `custom_generate` into a folder and return its path.

    ``model.generate(custom_generate=folder, trust_remote_code=True)`` then uses specds. So does a
    model loaded from the folder with `trust_remote_code=True`.

    Args:
        folder: A new folder, the folder of a model, or one that this function wrote to before.
        datastore: A datastore to draft from: its path or its name on the hub.
        on_unsupported: As in `accelerate`.

    Raises:
        FileExistsError: The folder has another `custom_generate`.
        ValueError: The datastore has another tokenizer than the model in the folder.
    """
    require_folder(folder, datastore)
    if datastore is not None and Path(datastore).exists():
        datastore = Path(datastore).resolve()
    target = Path(folder) / "custom_generate"
    target.mkdir(parents=True, exist_ok=True)
    name = None if datastore is None else str(datastore)
    program = _PROGRAM.format(mark=_MARK, datastore=name, on_unsupported=on_unsupported)
    (target / "generate.py").write_text(program)
    (target / "requirements.txt").write_text(f"specds>={__version__}\n")
    return target


def require_folder(folder: str | PathLike[str], datastore: str | PathLike[str] | None) -> None:
    """Raise the errors that `export_generate` would raise."""
    target = Path(folder) / "custom_generate"
    program = target / "generate.py"
    if target.exists() and not (program.exists() and _MARK in program.read_text()):
        raise FileExistsError(f"{target} is not {_MARK}: remove it, or choose another folder")
    if datastore is not None:
        opened = Datastore(datastore)
        if (Path(folder) / "config.json").exists():
            from specds.models.load import load_tokenizer

            check_tokenizer(opened, load_tokenizer(str(folder)))


def generate_of_folder(
    model: PreTrainedModel,
    *args: Any,
    datastore: str | None = None,
    drafter: Drafter | None = None,
    **arguments: Any,
) -> Any:
    """Run `model.generate` through specds, for `generate.py` in the folder.

    One drafter for each datastore serves all requests of the process. Requests specify no tenant,
    so they are isolated: nothing of one affects the drafts of another.

    Args:
        model: The model.
        *args: As in `model.generate`.
        datastore: Path or name of the datastore.
        drafter: The drafter to use; by default the shared one of the datastore, which also drafts
            from `specds_predicted_output` of the generation configuration, text or token ids.
        **arguments: As in `model.generate` and `accelerate`. Text needs `tokenizer`.
    """
    if drafter is None:
        drafter = request_drafter(datastore, arguments)
    own = [name for name in arguments if name in _OPTIONS]
    options = Options(drafter, **{name: arguments.pop(name) for name in own})
    of_class: Any = type(model)
    baseline = of_class.generate.__get__(model)
    return generate_by(model, baseline, options, None, *args, **arguments)


def request_drafter(datastore: str | None, arguments: Mapping[str, Any]) -> Drafter:
    """Return the drafter of a request, from which no later one learns."""
    predicted = getattr(arguments.get("generation_config"), "specds_predicted_output", None)
    if isinstance(predicted, str):
        tokenizer = arguments["tokenizer"]
        tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # of a processor
        predicted = tokenizer.encode(predicted, add_special_tokens=False)
    return _shared_drafter(datastore).for_request(tenant=None, predicted_output=predicted)


@cache
def _shared_drafter(datastore: str | None) -> FusedDrafter:
    return FusedDrafter(datastore, memory=False)
