"""Display of results: tables and colored text, drawn by rich."""

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from specds import terminal
from specds._core import Datastore
from specds.terminal import counted, duration, quantity

if TYPE_CHECKING:
    from specds.generation.stats import GenerationStats


def show(title: str, facts: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        terminal.print_json(facts)
    else:
        terminal.out.print(facts_table(title, facts))


def show_needs(model: str, facts: dict[str, Any]) -> None:
    """Show what a GGUF file needs, and whether the machine has it."""
    types = [f"{kind} {share:.0%}" for kind, share in facts["types"].items() if share >= 0.005]
    hidden = {"contexts", "estimated_tokens_per_s", "types", "bandwidth_bytes_per_s"}
    shown = {name: value for name, value in facts.items() if name not in hidden}
    shown |= {"types": types, "memory_bandwidth": quantity(facts["bandwidth_bytes_per_s"], "B/s")}
    terminal.out.print(facts_table(f"Model {model}", shown))
    table = Table(*numbers("context", "weights", "keys, values, states", "fits", "tokens/s"))
    for row in facts["contexts"]:
        fits = {True: "yes", False: "NO", None: "?"}[row["fits"]]
        sizes = (quantity(row[name], "B") for name in ("weight_bytes", "cache_bytes"))
        speed = quantity(row["estimated_tokens_per_s"])
        table.add_row(f"{row['context']:,}", *sizes, fits, f"about {speed}")
    short = quantity(facts["estimated_tokens_per_s"])
    what = f"memory, and estimated speed without drafts (about {short} tokens/s in a short text)"
    terminal.out.print(titled(what, table))


def show_build(report: dict[str, Any], *, as_json: bool, verbose: bool) -> None:
    """Show a report of a build; without `verbose`, the figures of the datastore and what is odd."""
    shown = report
    if not verbose and not as_json:
        names = ("path", "num_documents", "num_tokens", "num_bytes", "bytes_per_token")
        odd = ("num_duplicates", "num_resumed", "skipped", "unwritten_fields", "normalized")
        shown = {name: report[name] for name in (*names, *filter(report.get, odd))}
        if report["num_added_documents"] != report["num_documents"]:
            shown["num_added_documents"] = report["num_added_documents"]
        shown["seconds"] = report["tokenize_s"] + report["index_s"]
    show("Datastore", shown, as_json=as_json)


_FIGURES = ("vocab_size", "separator", "num_documents", "num_tokens", "num_shards", "num_bytes")


def show_datastore(datastore: Datastore, *, as_json: bool) -> None:
    written = datetime.fromtimestamp((datastore.path / "manifest.json").stat().st_mtime)
    facts: dict[str, Any] = {
        "path": str(datastore.path),
        "corpus": datastore.corpus,
        "tokenizer": datastore.tokenizer_name,
        "tokenizer_fingerprint": datastore.tokenizer_fingerprint,
        **{name: getattr(datastore, name) for name in _FIGURES},
        "bytes_per_token": datastore.num_bytes / datastore.num_tokens,
        "written": f"{written:%Y-%m-%d %H:%M}",
    }
    show("Datastore", facts, as_json=as_json)


def drafting_rows(stats: "GenerationStats") -> dict[str, str]:
    drafts = max(stats.num_drafts, 1)
    shares = dict(stats.shares)
    shares["the rest"] = 1 - sum(shares.values())
    rows = {
        "mean acceptance length": f"{stats.mean_acceptance_length:.2f}",
        "nodes per draft": f"{stats.num_draft_tokens / drafts:.1f}",
        "time per draft": f"{stats.draft_s / drafts * 1e6:.0f} µs",
    }
    rows |= {f"share of time: {name}": f"{share:.1%}" for name, share in shares.items()}
    if stats.levels:
        rows["redundancy"] = f"{stats.redundancy:.1%}"
        rows["target utilization"] = f"{stats.target_utilization:.1%}"
    for name, level in stats.levels.items():
        rows[f"level {name}"] = (
            f"{level.num_accepted} of {level.num_drafted} kept above, "
            f"{level.num_forwards} passes, {level.seconds:.2f} s"
        )
    return rows


def facts_table(title: str, facts: dict[str, Any]) -> Group:
    """Return a table of names and values, with the path in the title, where no column cuts it."""
    shown = {name: _fact(name, value) for name, value in facts.items()}
    title = f"{title} {shown.pop('path', '')}".strip()
    return two_columns(title, {_label(name): told for name, told in shown.items() if told})


def two_columns(title: str, rows: dict[str, str]) -> Group:
    table = Table(Column(style="dim"), Column(justify="right", overflow="fold"), show_header=False)
    for row in rows.items():
        table.add_row(*row)
    return titled(title, table)


def _label(name: str) -> str:
    """``num_added_tokens``: added tokens; ``bytes_per_token``: bytes/token; ``index_s``: index."""
    name = {"seconds": "time"}.get(name, name.replace("_per_", "/"))
    return re.sub("^num_|_s$", "", name).replace("_", " ")


def _fact(name: str, value: Any) -> str:
    """A value as its name says: a size, a time, a rate, a number."""
    if isinstance(value, dict):
        return "\n".join(f"{count:,}: {reason}" for reason, count in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, (int, float)):
        return str(value or "")
    if name.endswith("_bytes"):
        return quantity(value, "B")
    if name.startswith("share_"):
        return f"{value:.0%}"
    if name.endswith("_per_s"):
        return quantity(value)
    if name.endswith(("_s", "seconds")):
        return duration(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


def lookup_table(result: dict[str, Any]) -> Group:
    length, count = result["match_length"], result["match_count"]
    found = f"{counted(length, 'token')} matched, {counted(count, 'time')}: "
    found += repr(result["match_text"])
    if result["unfinished"] is not None:
        found += f" with tokens that begin with {result['unfinished']!r}"
    table = Table(*numbers("count", "token"), "text")
    for row in result["continuations"]:
        table.add_row(f"{row['count']:,}", str(row["token_id"]), repr(row["text"]))
    return titled(found, table)


def source_text(source: dict[str, Any]) -> Text:
    name = source["source"] or f"document {source['document']:,}"
    place = f"{name}, token {source['position']:,}\n"
    return Text.assemble(
        (place, "dim"), source["before"], (source["match"], "bold"), source["after"], "\n"
    )


def numbers(*names: str) -> list[Column]:
    return [Column(name, justify="right") for name in names]


def titled(title: str, table: Table) -> Group:
    """A table with its title above, which may be longer than the table is wide."""
    return Group(Text(title, "italic"), table)
