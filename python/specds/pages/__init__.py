"""Pages that load nothing, and what they share: their head, styles, and drawings of drafts."""

import re
from importlib.resources import files

_SHARED = ("head.html", "style.css", "tree.js")


def page(package: str, title: str) -> str:
    """Return the page of a package, with the shared files inlined."""

    def text(name: str) -> str:
        home = __name__ if name in _SHARED else package
        content = (files(home) / "assets" / name).read_text(encoding="utf-8")
        return re.sub(r"\{\{([\w.]+)\}\}", inlined, content)

    def inlined(found: re.Match[str]) -> str:
        return title if found[1] == "title" else text(found[1])

    return text("page.html")
