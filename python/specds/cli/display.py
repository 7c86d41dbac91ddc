"""How are results shown: tables and coloured text, drawn by rich."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from specds import terminal
from specds.terminal import counted, duration, quantity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, ConsoleOptions, RenderResult

    from specds._core import Datastore
    from specds.build import BuildEstimate, BuildReport, RefreshReport
    from specds.demo.measure import Comparison
    from specds.stats import GenerationStats


def show(facts: dict[str, Any], table: Table, *, as_json: bool) -> None:
    """Prints a result: as one JSON document for programs, or as a table for people."""
    if as_json:
        terminal.print_json(facts)
    else:
        terminal.out.print(table)


def show_datastore(datastore: Datastore, *, as_json: bool) -> None:
    """Prints what a datastore holds and what it was built from."""
    facts: dict[str, Any] = {
        "path": str(datastore.path),
        "corpus": datastore.corpus,
        "tokenizer": datastore.tokenizer_name,
        "tokenizer_fingerprint": datastore.tokenizer_fingerprint,
        "vocab_size": datastore.vocab_size,
        "separator": datastore.separator,
        "num_documents": datastore.num_documents,
        "num_tokens": datastore.num_tokens,
        "num_shards": datastore.num_shards,
        "num_bytes": datastore.num_bytes,
        "bytes_per_token": datastore.num_bytes / datastore.num_tokens,
        "has_prior": datastore.prior is not None,
    }
    table = _facts(f"Datastore {datastore.path}")
    table.add_row("corpus", ", ".join(datastore.corpus))
    table.add_row("tokenizer", datastore.tokenizer_name or "without a name")
    table.add_row("fingerprint", datastore.tokenizer_fingerprint)
    for name in ("vocab_size", "separator", "num_documents", "num_tokens", "num_shards"):
        table.add_row(name.removeprefix("num_").replace("_", " "), f"{facts[name]:,}")
    table.add_row("on disk", quantity(datastore.num_bytes, "B"))
    table.add_row("bytes/token", f"{facts['bytes_per_token']:.2f}")
    table.add_row("prior", "yes" if facts["has_prior"] else "none: `specds fit` makes one")
    written = datetime.fromtimestamp((datastore.path / "manifest.json").stat().st_mtime)
    table.add_row("written", f"{written:%Y-%m-%d %H:%M}")
    show(facts, table, as_json=as_json)


def refresh_table(report: RefreshReport) -> Table:
    """The summary of a refresh."""
    table = _facts(f"Datastore {report.path}")
    table.add_row("texts", f"{report.num_texts:,}")
    table.add_row("added documents", f"{report.num_added_documents:,}")
    table.add_row("added tokens", f"{report.num_added_tokens:,}")
    table.add_row("tokens", f"{report.num_tokens:,}")
    table.add_row("shards", f"{report.num_shards:,}")
    table.add_row("left in memory", f"{report.num_left:,} tokens")
    table.add_row("time", f"{report.seconds:.1f} s")
    return table


def build_table(report: BuildReport) -> Table:
    """The summary of a build."""
    table = _facts(f"Datastore {report.path}")
    table.add_row("documents", f"{report.num_documents:,}")
    table.add_row("tokens", f"{report.num_tokens:,}")
    if report.num_added_tokens != report.num_tokens:
        table.add_row("added documents", f"{report.num_added_documents:,}")
        table.add_row("added tokens", f"{report.num_added_tokens:,}")
    table.add_row("shards", f"{report.num_shards:,}")
    table.add_row("read", quantity(report.text_bytes, "B"))
    table.add_row("on disk", quantity(report.num_bytes, "B"))
    table.add_row("bytes/token", f"{report.bytes_per_token:.2f}")
    table.add_row("time", f"{report.tokenise_s:.1f} s tokenise + {report.index_s:.1f} s index")
    table.add_row("tokens/s", quantity(report.tokens_per_s))
    table.add_row("peak memory", quantity(report.peak_memory_bytes, "B"))
    if report.num_taken_up:
        table.add_row(
            "taken up", f"after {counted(report.num_taken_up, 'document')} of a stopped build"
        )
    if report.num_duplicates:
        table.add_row("left out", f"{report.num_duplicates:,}: duplicates")
    for reason, count in report.skipped.items():
        table.add_row("left out", f"{count:,}: {reason}")
    return table


def estimate_table(estimate: BuildEstimate) -> Table:
    """What a build is expected to take."""
    table = _facts("This build would take about")
    if estimate.num_tokens is None:
        table.title = "Of unknown size; each million tokens would take about"
    else:
        table.add_row("tokens", quantity(estimate.num_tokens))
        table.add_row("documents", quantity(estimate.num_documents or 0))
    table.add_row("time", duration(estimate.seconds))
    table.add_row("memory", quantity(estimate.memory_bytes, "B"))
    table.add_row("disk", quantity(estimate.disk_bytes, "B"))
    table.add_row("shards", f"{estimate.num_shards:,}")
    table.add_row("bytes/token", f"{estimate.bytes_per_token:.2f}")
    table.add_row("tokens/s", quantity(estimate.tokens_per_s))
    sampled = (
        f"{counted(estimate.sampled_documents, 'document')}, "
        f"{quantity(estimate.sampled_tokens)} tokens"
    )
    table.add_row("told from", sampled)
    return table


def stats_table(stats: GenerationStats) -> Table:
    """What drafting was worth in one run."""
    table = _facts("Drafting")
    for name, value in _drafting_rows(stats):
        table.add_row(name, value)
    return table


def comparison_table(comparisons: Sequence[Comparison], *, verbose: bool = False) -> Table:
    """`model.generate` against specds, one column for each way of choosing tokens."""
    table = _Table(title="specds against model.generate")
    table.add_column("")
    for comparison in comparisons:
        table.add_column(comparison.mode, justify="right")
    columns = [_comparison_rows(comparison, verbose) for comparison in comparisons]
    for rows in zip(*columns, strict=True):
        table.add_row(rows[0][0], *(value for _, value in rows))
    return table


def _comparison_rows(comparison: Comparison, verbose: bool) -> list[tuple[str, str]]:
    fresh, num_fresh = comparison.fresh_speed_up, len(comparison.fresh)
    of_fresh = "" if fresh is None else f"{fresh:.2f}x of {num_fresh}"
    return [
        ("identical output", "yes" if comparison.identical else "NO"),
        ("model.generate, tokens/s", f"{comparison.plain_tokens_per_s:.0f}"),
        ("specds, tokens/s", f"{comparison.specds_tokens_per_s:.0f}"),
        ("speed-up", f"{comparison.speed_up:.2f}x"),
        ("text that repeats itself", f"{comparison.repetition:.0%}"),
        ("speed-up of texts that do not", of_fresh),
        *_drafting_rows(comparison.stats)[: None if verbose else 3],
    ]


def _drafting_rows(stats: GenerationStats) -> list[tuple[str, str]]:
    drafts = max(stats.num_drafts, 1)
    shares = dict(stats.shares)
    shares["the rest"] = 1 - sum(shares.values())
    return [
        ("mean acceptance length", f"{stats.mean_acceptance_length:.2f}"),
        ("nodes per draft", f"{stats.num_draft_tokens / drafts:.1f}"),
        ("time per draft", f"{stats.draft_s / drafts * 1e6:.0f} µs"),
        *((f"share of time: {name}", f"{share:.1%}") for name, share in shares.items()),
        *(_level_rows(stats) if stats.levels else ()),
    ]


def _level_rows(stats: GenerationStats) -> list[tuple[str, str]]:
    return [
        ("redundancy", f"{stats.redundancy:.1%}"),
        ("target utilization", f"{stats.target_utilization:.1%}"),
        *(
            (
                f"level {name}",
                f"{level.num_accepted} of {level.num_drafted} kept above, "
                f"{level.num_forwards} passes, {level.seconds:.2f} s",
            )
            for name, level in stats.levels.items()
        ),
    ]


def facts_table(title: str, facts: dict[str, Any]) -> Table:
    """Names and values, one row each."""
    table = _facts(title)
    for name, value in facts.items():
        table.add_row(name, _fact(value))
    return table


def _fact(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def lookup_table(result: dict[str, Any]) -> Table:
    """The longest match of a lookup and what followed it."""
    length, count = result["match_length"], result["match_count"]
    table = _Table(
        title=f"{counted(length, 'token')} matched, {counted(count, 'time')}: "
        f"{result['match_text']!r}",
    )
    table.add_column("count", justify="right")
    table.add_column("token", justify="right")
    table.add_column("text")
    for row in result["continuations"]:
        table.add_row(f"{row['count']:,}", str(row["token_id"]), repr(row["text"]))
    return table


def source_text(source: dict[str, Any]) -> Text:
    """The text around a place of the corpus, the match in bold."""
    place = f"document {source['document']:,}, token {source['position']:,}\n"
    return Text.assemble(
        (place, "dim"),
        terminal.visible(source["before"]),
        (terminal.visible(source["match"]), "bold"),
        terminal.visible(source["after"]),
        "\n",
    )


class _Table(Table):
    """A table whose title may be longer than it is wide."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        title, self.title = self.title, None
        yield Text(str(title), "italic")
        yield from super().__rich_console__(console, options)
        self.title = title


def _facts(title: str) -> Table:
    table = _Table(title=title, show_header=False)
    table.add_column(style="dim")
    table.add_column(justify="right")
    return table
