"""The folder by which transformers generates with specds, and no other code: `custom_generate`."""

from __future__ import annotations

from functools import cache
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specds._core import Datastore, __version__
from specds.drafters.fused import FusedConfig, FusedDrafter
from specds.drafters.session import Drafter
from specds.generation.acceleration import generate_by
from specds.generation.request import Options
from specds.tokenization import check_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel


_MARK = "made by `specds export-generate`"
_PROGRAM = '''"""Generates with specds; {mark}."""

from specds.generation.folder import generate_of_folder

DATASTORE = {datastore!r}
OTHERWISE = {otherwise!r}


def generate(*args, model, **arguments):
    """As `model.generate`, and what `generate_of_folder` takes."""
    settings = {{"datastore": DATASTORE, "otherwise": OTHERWISE}} | arguments
    return generate_of_folder(model, *args, **settings)
'''


def export_generate(
    folder: str | PathLike[str],
    datastore: str | PathLike[str] | None = None,
    *,
    otherwise: str = "refuse",
) -> Path:
    """Writes `custom_generate` into a folder, as transformers looks for it.

    ``model.generate(custom_generate=folder, trust_remote_code=True)`` then uses specds; and where
    the folder is a model's, so does each model loaded from it with `trust_remote_code=True`.

    Args:
        folder: A new folder, a model's, or one that has a `custom_generate` written here before.
        datastore: What to draft from beside the request: its absolute path is written down, or its
            name on the hub.
        otherwise: As of `accelerate`.

    Returns:
        The folder `custom_generate`.

    Raises:
        FileExistsError: The folder has a `custom_generate` of somebody else's.
        ValueError: The datastore is of another tokenizer than the model in the folder.
    """
    require_folder(folder, datastore)
    if datastore is not None:  # a name on the hub means the same everywhere
        datastore = str(Path(datastore).resolve() if Path(datastore).exists() else datastore)
    target = Path(folder) / "custom_generate"
    target.mkdir(parents=True, exist_ok=True)
    program = _PROGRAM.format(mark=_MARK, datastore=datastore, otherwise=otherwise)
    (target / "generate.py").write_text(program)
    (target / "requirements.txt").write_text(f"specds>={__version__}\n")
    return target


def require_folder(folder: str | PathLike[str], datastore: str | PathLike[str] | None) -> None:
    """Raises what `export_generate` would raise, and writes nothing."""
    target = Path(folder) / "custom_generate"
    program = target / "generate.py"
    if target.exists() and not (program.exists() and _MARK in program.read_text()):
        raise FileExistsError(f"{target} is not {_MARK}: remove it, or choose another folder")
    if datastore is not None:
        opened = Datastore.open(datastore)
        if (Path(folder) / "config.json").exists():
            from specds.loading import load_tokenizer

            check_tokenizer(opened, load_tokenizer(str(folder)))


def generate_of_folder(
    model: PreTrainedModel,
    *args: Any,
    datastore: str | None = None,
    drafter: Drafter | None = None,
    otherwise: str = "refuse",
    budget: Any = "auto",
    verification: str = "auto",
    stream_every: int | None = None,
    **arguments: Any,
) -> Any:
    """What `generate.py` in the folder runs: `model.generate` through specds.

    One drafter for each datastore serves all requests of the process. It keeps no texts: nobody
    says whose they are.
    """
    drafter = drafter or _shared_drafter(datastore)
    options = Options(drafter, budget=budget, verification=verification, stream_every=stream_every)
    of_class: Any = type(model)
    plain = of_class.generate.__get__(model)
    return generate_by(model, plain, options, otherwise, *args, **arguments)


@cache
def _shared_drafter(datastore: str | None) -> FusedDrafter:
    return FusedDrafter(datastore, FusedConfig(memory=False))
