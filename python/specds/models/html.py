"""HTML of results for notebooks: tables, token trees, and texts with drafted tokens in color."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

# Readable on light and on dark pages.
_DRAFTED = "#2da44e"


def table(title: str, rows: Mapping[str, Any]) -> str:
    cells = "".join(
        f"<tr><td style='text-align:left'>{escape(name)}</td><td>{escape(str(value))}</td></tr>"
        for name, value in rows.items()
    )
    return f"<table><caption>{escape(title)}</caption>{cells}</table>"


def text(tokens: Iterable[tuple[str, bool]]) -> str:
    """Return a text whose drafted tokens are in color."""
    spans = (
        f"<span style='color:{_DRAFTED}'>{escape(token)}</span>" if is_drafted else escape(token)
        for token, is_drafted in tokens
    )
    return f"<pre style='white-space:pre-wrap'>{''.join(spans)}</pre>"


def tree(labels: Sequence[str], parents: Sequence[int]) -> str:
    def below(parent: int) -> str:
        nodes = [node for node, above in enumerate(parents) if above == parent]
        items = "".join(
            f"<li><code>{escape(labels[node])}</code>{below(node)}</li>" for node in nodes
        )
        return f"<ul>{items}</ul>" if items else ""

    return below(-1) or "<i>an empty tree</i>"


def datastore_html(datastore: Any) -> str:
    names = ("tokenizer_name", "num_documents", "num_tokens", "num_shards", "num_bytes")
    rows = {name.replace("_", " "): getattr(datastore, name) for name in names}
    return table(f"Datastore {datastore.path}", rows)


def tree_html(drafted: Any, texts: Sequence[str] | None = None) -> str:
    """Return the nodes of a token tree with their probabilities, by default as token ids."""
    names = map(str, drafted.token_ids.tolist()) if texts is None else map(repr, texts)
    pairs = zip(names, drafted.probs.tolist(), strict=True)
    return tree([f"{name} ({prob:.0%})" for name, prob in pairs], drafted.parents.tolist())
