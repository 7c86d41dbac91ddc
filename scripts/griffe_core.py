"""Griffe extension for API pages: docstrings of the compiled core, whose stub has only types."""

import inspect
from operator import attrgetter
from typing import Any

import griffe

from specds import _core

_PREFIX = "specds._core."


class RunTimeDocs(griffe.Extension):
    """Extension that takes docstrings from the running module."""

    def on_instance(
        self, *, obj: griffe.Object, agent: griffe.Visitor | griffe.Inspector, **kwargs: Any
    ) -> None:
        """Called for each name that griffe finds in the sources."""
        if obj.path.startswith(_PREFIX) and not obj.docstring and not obj.is_private:
            obj.docstring = griffe.Docstring(
                inspect.getdoc(attrgetter(obj.path.removeprefix(_PREFIX))(_core)) or "",
                parent=obj,
                parser=agent.docstring_parser,
                parser_options=agent.docstring_options,
            )
