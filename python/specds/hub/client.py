"""Access to the hub's client; its errors are raised with a remedy."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from specds._core import FormatError, __version__
from specds._lazy import imported
from specds.hub.names import HubName

KIND = {"repo_type": "dataset"}
LIBRARY = {"library_name": "specds", "library_version": __version__}
LOG_IN = "log in with `hf auth login` or set HF_TOKEN"

TIMEOUT_S = 10.0
UNAUTHORIZED = (401, 403)


def hub() -> Any:
    return imported("huggingface_hub")


def api() -> Any:
    return hub().HfApi(**LIBRARY)


def describe(name: HubName) -> tuple[str, dict[str, int]]:
    """Return the commit of a name and the sizes of its files, with one request."""
    info = api().dataset_info(
        name.repository, revision=name.revision, files_metadata=True, timeout=TIMEOUT_S
    )
    return str(info.sha), {file.rfilename: file.size or 0 for file in info.siblings or ()}


def connection_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of the client for a refusal or an unreachable hub."""
    general = imported("huggingface_hub.errors").HfHubHTTPError
    # Its bases are the general error of the HTTP client, whichever it is, and `OSError`.
    return (OSError, *general.__bases__)


def status_of(error: BaseException | None) -> int | None:
    """Return the status of the hub's response; None if there was none."""
    while error is not None:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(status, int):
            return status
        error = error.__cause__
    return None


def unreachable(what: str, error: Exception) -> str:
    remedy = "unset HF_HUB_OFFLINE" if hub().constants.HF_HUB_OFFLINE else "check the network"
    return f"cannot reach the hub for `{what}`: {remedy} ({brief(error)})"


def brief(error: Exception) -> str:
    """Return an error on one line."""
    return " ".join(str(error).split("Example of usage")[0].split()) or type(error).__name__


@contextmanager
def explained(name: HubName, *, not_here: bool = False) -> Iterator[None]:
    """Convert errors of the client to errors with a remedy."""
    errors = imported("huggingface_hub.errors")
    here = f"no folder `{name}` here; " if not_here else ""
    try:
        yield
    except errors.GatedRepoError as error:
        message = f"`{name}` is gated: accept its terms at {name.page}, then {LOG_IN}"
        raise PermissionError(message) from error
    except errors.RevisionNotFoundError as error:
        message = f"`{name.repository}` has no revision `{name.revision}`: see {name.page}"
        raise FileNotFoundError(message) from error
    except errors.RepositoryNotFoundError as error:
        message = f"{here}no dataset `{name.repository}` on the hub; if it is private, {LOG_IN}"
        raise FileNotFoundError(message) from error
    except connection_errors() as error:
        status = status_of(error)
        if status in UNAUTHORIZED:
            message = f"the hub refuses your token for `{name}`: {LOG_IN}"
            raise PermissionError(message) from error
        if "Consistency check failed" in str(error):
            raise FormatError(
                f"`{name}` has a file whose size does not match: {brief(error)}"
            ) from error
        if status is None and isinstance(error, OSError) and error.errno:
            raise  # of the disk
        raise ConnectionError(here + unreachable(str(name), error)) from error
    except ValueError as error:
        if isinstance(error, (FormatError, errors.HFValidationError)):
            raise
        # Of an address to which the hub redirects.
        raise ConnectionError(here + unreachable(str(name), error)) from error
