"""What is a datastore called on the hub?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from os import PathLike

# A path has lost one of the two slashes of `hf://`.
_NAME = re.compile(
    r"(?P<scheme>hf:/{1,2}(datasets/)?)?(?P<repository>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>\w[\w./-]*))?",
    re.ASCII,
)


@dataclass(frozen=True)
class HubName:
    """A datastore on the hub.

    Attributes:
        repository: ``org/name``, a dataset of the hub.
        revision: A branch, a tag or a commit.
    """

    repository: str
    revision: str = "main"

    def __str__(self) -> str:
        return self.repository + ("" if self.revision == "main" else f"@{self.revision}")

    @classmethod
    def parse(cls, path: str | PathLike[str]) -> HubName | None:
        """Reads ``org/name`` or ``hf://org/name@revision``; None where it can only be a path.

        Raises:
            ValueError: It begins with ``hf:`` and is no name.
        """
        text = path if isinstance(path, str) else PurePath(path).as_posix()
        found = _NAME.fullmatch(text)
        if found is not None:
            return cls(found["repository"], found["revision"] or "main")
        if text.startswith("hf:"):
            raise ValueError(f"`{text}` is no datastore of the hub: try hf://org/name@revision")
        return None

    @property
    def page(self) -> str:
        """Where people see it."""
        return f"https://huggingface.co/datasets/{self.repository}"
