"""Counts and times of generation, with vLLM's names where it has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import accumulate, zip_longest
from typing import Any

from specds.models.html import table

_PHASES = ("prefill_s", "draft_s", "forward_s", "accept_s", "compact_s", "observe_s")


@dataclass
class LevelStats:
    """Counts and times of one level of a hierarchy (see `specds.papers.HierarchyDrafter`).

    Attributes:
        num_forwards: Forward passes of its model.
        num_drafted: Tokens that it passed to the caller level.
        num_accepted: Tokens of these that the caller level accepted.
        seconds: Time of its own forward passes and draws, without lower levels.
    """

    num_forwards: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    seconds: float = 0.0

    def merge(self, other: LevelStats) -> None:
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))


@dataclass
class GenerationStats:
    """Counts and times of one request, or of several merged.

    Every target forward after the prefill verifies one draft, which may be empty. It yields the
    accepted tokens and one bonus token, unless a stop falls on an accepted token. For each request
    `num_emitted_tokens` is hence ``1 + num_accepted_tokens + num_drafts`` (the 1 comes from the
    prefill), or one less.

    Attributes:
        num_drafts: Target forwards after the prefill.
        num_draft_tokens: Nodes verified, after a draft was cut to `max_nodes` and to `max_length`.
        num_fed_tokens: Tokens of the target forwards after the prefill: the last one of each row,
            drafts, and accepted tokens that a recurrent state needs again after a rejection.
        num_accepted_tokens: Emitted tokens that had been drafted.
        acceptance_histogram: Entry `[i][j]` is the number of drafts with `i` verified nodes of
            which `j` tokens were accepted. Trailing zeros are left out.
        num_emitted_tokens: Tokens generated, the prefill's included.
        prefill_s: Time of the forward passes over the prompt.
        draft_s: Time of the drafts.
        forward_s: Time of the forward passes over trees, with their inputs and masks.
        accept_s: Time of logits processors, token choice, stopping criteria and the streamer.
        compact_s: Time to keep the accepted states of the KV cache.
        observe_s: Time of `Session.observe` and of the automatic budget's updates.
        total_s: Time of the whole request.
        num_baseline_steps: Steps in which no row had a draft.
        baseline_s: Time that one row of these steps takes, without outliers such as first steps.
        levels: Statistics of the levels of a hierarchy by name, the lowest first.
        verification: The backend: `packed`, `model`, `chain`, `native`, or the name of a class.
        reason: Why a faster backend or, on a GPU, the fused forward was not used; empty if it was.
    """

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_fed_tokens: int = 0
    num_accepted_tokens: int = 0
    acceptance_histogram: list[list[int]] = field(default_factory=list)
    num_emitted_tokens: int = 0
    prefill_s: float = 0.0
    draft_s: float = 0.0
    forward_s: float = 0.0
    accept_s: float = 0.0
    compact_s: float = 0.0
    observe_s: float = 0.0
    total_s: float = 0.0
    num_baseline_steps: int = 0
    baseline_s: float = 0.0
    levels: dict[str, LevelStats] = field(default_factory=dict)
    verification: str = ""
    reason: str = ""

    @property
    def tokens_per_s(self) -> float:
        """Emitted tokens per second, prefill included; 0.0 before any token."""
        return self.num_emitted_tokens / self.total_s if self.total_s else 0.0

    @property
    def baseline_step_s(self) -> float:
        """Mean time of a token without drafts, prefill excluded; 0.0 before any."""
        return self.baseline_s / max(self.num_baseline_steps, 1)

    @property
    def speedup(self) -> float:
        """Estimated time without drafts over `total_s`; 0.0 unless steps with and without ran."""
        steps_s = (self.num_drafts + self.num_accepted_tokens) * self.baseline_step_s
        is_known = self.num_draft_tokens and self.total_s and steps_s
        return (self.prefill_s + steps_s) / self.total_s if is_known else 0.0

    def __str__(self) -> str:
        """Return a summary: ``128 tokens in 0.53 s, 241/s; 15 passes, 8.5 tokens each``."""
        times = f"; about {self.speedup:.1f} times the speed without drafts"
        speedup = times if self.speedup else ""
        if 0 < self.speedup < 0.95:
            speedup += " (max_nodes=0)"
        passes = f"{self.num_drafts:,} pass" + ("" if self.num_drafts == 1 else "es")
        speed = f"{self.tokens_per_s:{'.0f' if self.tokens_per_s > 9.95 else '.2g'}}"
        return (
            f"{self.num_emitted_tokens:,} tokens in {self.total_s:.2f} s, "
            f"{speed}/s; {passes}, {self.mean_acceptance_length:.1f} tokens each{speedup}"
        )

    def _repr_html_(self) -> str:
        shares = {f"share of time: {name}": f"{part:.1%}" for name, part in self.shares.items()}
        return table(str(self), {"drafted and accepted": self.num_accepted_tokens, **shares})

    @property
    def num_accepted_tokens_per_pos(self) -> list[int]:
        """At index `i`, the number of drafts with at least ``i + 1`` accepted tokens."""
        by_number = map(sum, zip_longest(*self.acceptance_histogram, fillvalue=0))
        return list(accumulate(list(by_number)[:0:-1]))[::-1]

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per target forward, bonus token included; the prefill is not counted."""
        return 1 + self.num_accepted_tokens / max(self.num_drafts, 1)

    @property
    def redundancy(self) -> float:
        """Fraction of drafted tokens that the target rejected: HSDDW's sigma."""
        rejected = self.num_draft_tokens - self.num_accepted_tokens
        return rejected / max(self.num_draft_tokens, 1)

    @property
    def target_utilization(self) -> float:
        """Target forward passes per emitted token: HSDDW's eta."""
        return 1 / self.mean_acceptance_length

    @property
    def shares(self) -> dict[str, float]:
        """Fraction of `total_s` by phase (`prefill`, `draft`, ...); the rest is the loop itself."""
        total = self.total_s or 1.0
        return {name.removesuffix("_s"): getattr(self, name) / total for name in _PHASES}

    def to_dict(self) -> dict[str, Any]:
        """Return all counts, times and derived figures as built-in types."""
        names = ("tokens_per_s", "mean_acceptance_length", "redundancy", "target_utilization")
        more = ("baseline_step_s", "speedup", "num_accepted_tokens_per_pos")
        derived = {name: getattr(self, name) for name in (*names, *more)}
        return asdict(self) | derived | {"shares": self.shares}

    def record_baseline_steps(self, seconds: Sequence[float]) -> None:
        """Keep the times of a request's steps without drafts, by the mean of their middle half."""
        cut = (len(seconds) + 1) // 4
        middle = sorted(seconds)[cut : len(seconds) - cut]
        self.num_baseline_steps += len(seconds)
        self.baseline_s += len(seconds) * sum(middle) / max(len(middle), 1)

    def record_draft(self, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """Count one target forward pass and the accepted tokens of its draft."""
        self.num_drafts += 1
        self.num_draft_tokens += num_draft_tokens
        self.num_accepted_tokens += num_accepted_tokens
        rows = self.acceptance_histogram
        rows.extend([] for _ in range(num_draft_tokens + 1 - len(rows)))
        row = rows[num_draft_tokens]
        row.extend([0] * (num_accepted_tokens + 1 - len(row)))
        row[num_accepted_tokens] += 1

    def merge(self, other: GenerationStats) -> None:
        for name, theirs in vars(other).items():
            mine = getattr(self, name)
            if isinstance(mine, list):
                rows = zip_longest(mine, theirs, fillvalue=())
                added = [[a + b for a, b in zip_longest(*pair, fillvalue=0)] for pair in rows]
                setattr(self, name, added)
            elif isinstance(mine, str):
                setattr(self, name, theirs or mine)
            elif name != "levels":
                setattr(self, name, mine + theirs)
        self.merge_levels(other.levels)

    def merge_levels(self, levels: Mapping[str, LevelStats]) -> None:
        for name, level in levels.items():
            self.levels.setdefault(name, LevelStats()).merge(level)

    def __add__(self, other: GenerationStats) -> GenerationStats:
        merged = GenerationStats()
        merged.merge(self)
        merged.merge(other)
        return merged
