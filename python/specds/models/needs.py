"""Memory and bandwidth that a GGUF file needs, from its header alone."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specds._core import GgufFile
from specds.models.gguf import field

USUAL_CONTEXT = 8192
"""A context for which needs are said, if the file has a longer one."""

# What a load needs at least: the keys, values and states of a short text.
_SHORT_CONTEXT = 512
_CGROUPS = Path("/sys/fs/cgroup")


class NotEnoughMemoryError(MemoryError):
    """A model or a prompt does not fit into memory.

    Attributes:
        weight_bytes: Bytes of the weights.
        cache_bytes: Bytes of the keys, values and recurrent states.
        available_bytes: Bytes that are available.
    """

    def __init__(
        self, what: str, weight_bytes: int, cache_bytes: int, num_tokens: int, available_bytes: int
    ) -> None:
        super().__init__(
            f"not enough memory for {what}: {_size(weight_bytes)} of weights and "
            f"{_size(cache_bytes)} of keys, values and states for {num_tokens:,} tokens, and "
            f"{_size(available_bytes)} are available: close other programs, or use a smaller file"
        )
        self.weight_bytes, self.cache_bytes = weight_bytes, cache_bytes
        self.available_bytes = available_bytes


@dataclass(frozen=True)
class Needs:
    """Memory and bandwidth that the model of a file needs.

    Attributes:
        instructions: The processor's instructions that compute it.
        shares: The share of each type in the bytes of all tensors, the largest first.
        weight_bytes: Memory of the weights.
        active_bytes: Bytes of the weights that a token reads: of experts, those that it uses.
        context_length: The file's own context.
        state_bytes: Memory of the recurrent states, whatever the number of tokens.
        cache_bytes: Memory of the keys, values and recurrent states by the number of tokens.
    """

    instructions: str
    shares: dict[str, float]
    weight_bytes: int
    active_bytes: int
    context_length: int
    state_bytes: int
    cache_bytes: dict[int, int]

    @classmethod
    def of(cls, file: GgufFile, *num_tokens: int) -> Needs:
        """Read the needs at some numbers of tokens, and at those of the file's own context.

        Raises:
            FormatError: The file is damaged, or the core does not compute its model.
        """
        architecture = field(file, "general.architecture")
        context_length = field(file, f"{architecture}.context_length", 2048)
        numbers = sorted({*num_tokens, context_length})
        instructions, packed_bytes, (state_bytes, *caches) = file.model_sizes([0, *numbers])
        sizes = file.tensor_sizes()
        floats = sum(size for _, kind, size in sizes if kind in ("F32", "F16", "BF16"))
        return cls(
            instructions,
            shares_of(file),
            packed_bytes + floats,
            _active_bytes(file, str(architecture)),
            context_length,
            state_bytes,
            dict(zip(numbers, caches, strict=True)),
        )

    def tokens_per_s(self, bytes_per_s: float, num_tokens: int = 0) -> float:
        """Estimate the tokens a second without drafts, after some tokens, by the bandwidth."""
        read = self.active_bytes + self.cache_bytes.get(num_tokens, self.state_bytes)
        read -= self.state_bytes  # copies, of which a token reads a few MB
        return bytes_per_s / max(read, 1)

    def fits(self, num_tokens: int, available: int) -> bool:
        return self.weight_bytes + self.cache_bytes[num_tokens] <= available


def shares_of(file: GgufFile) -> dict[str, float]:
    """Return the share of each type in the bytes of all tensors, the largest first."""
    by_type: dict[str, int] = {}
    for _, kind, size in file.tensor_sizes():
        by_type[kind] = by_type.get(kind, 0) + size
    whole = max(sum(by_type.values()), 1)
    return {kind: by_type[kind] / whole for kind in sorted(by_type, key=lambda of: -by_type[of])}


def _active_bytes(file: GgufFile, architecture: str) -> int:
    num_experts = field(file, f"{architecture}.expert_count", 0)
    num_used = field(file, f"{architecture}.expert_used_count", num_experts)
    used = num_used / num_experts if num_experts else 1.0
    is_tied = "output.weight" not in file.tensors()
    read = 0.0
    for name, _, size in file.tensor_sizes():
        if name != "token_embd.weight" or is_tied:
            read += size * (used if "_exps." in name else 1.0)
    return int(read)


def require_memory(file: GgufFile) -> None:
    """Check, before any work, that the weights of a file and a short text fit into memory.

    Raises:
        NotEnoughMemoryError: They do not; it has the numbers.
        FormatError: The file is damaged, or the core does not compute its model.
    """
    available = available_bytes()
    if available is not None:
        needs = Needs.of(file, _SHORT_CONTEXT)
        if not needs.fits(_SHORT_CONTEXT, available):
            cache = needs.cache_bytes[_SHORT_CONTEXT]
            numbers = needs.weight_bytes, cache, _SHORT_CONTEXT, available
            raise NotEnoughMemoryError("the model", *numbers)


def require_cache_memory(model: Any, num_tokens: int, num_known: int) -> None:
    """Check that the keys, values and states of a prompt fit into memory.

    Raises:
        NotEnoughMemoryError: They do not; it has the numbers.
    """
    weights, kind = model.weights, model.cache_type
    known = weights.cache_bytes(num_known, kind) if num_known else 0
    cache = weights.cache_bytes(num_tokens, kind) - known
    # To read how much is available takes longer than to allocate a little.
    if cache >= 1 << 27 and (available := available_bytes()) is not None and cache > available:
        raise NotEnoughMemoryError("the prompt", weights.num_bytes, cache, num_tokens, available)


def available_bytes() -> int | None:
    """Return the memory that this process can still take; None if the system does not say.

    It is that of the machine, or what the control groups of the process leave of it.
    """
    found = [number for number in (_of_machine(), *_of_groups()) if number is not None]
    return min(found, default=None)


def _of_machine() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            name, _, rest = line.partition(":")
            if name == "MemAvailable":
                return int(rest.split()[0]) * 1024
        return None
    except (OSError, ValueError, IndexError):
        return _of_system()


def _of_system() -> int | None:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _of_groups() -> list[int | None]:
    """Return what each control group of this process leaves."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, kinds, name = (*line.split(":", 2), "", "")[:3]
        if kinds == "":
            folder, names = _CGROUPS, ("memory.max", "memory.current")
        elif "memory" in kinds.split(","):
            folder = _CGROUPS / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        group = folder / name.lstrip("/")
        found += [_left(at, *names) for at in (group, *group.parents) if at.is_relative_to(folder)]
    return found


def _left(group: Path, most: str, used: str) -> int | None:
    """Return what a group leaves; the pages of files, such as packed weights, count as free."""
    try:
        limit, now = ((group / name).read_text(encoding="ascii").strip() for name in (most, used))
        rows = (group / "memory.stat").read_text(encoding="ascii").splitlines()
        pages = dict(row.split(" ", 1) for row in rows)
        # Version 1 counts the pages of the groups below under names of their own.
        files = sum(
            int(pages.get(f"total_{kind}", pages.get(kind, "0")))
            for kind in ("active_file", "inactive_file")
        )
        return max(int(limit) - int(now) + files, 0)
    except (OSError, ValueError):
        return None  # no limit, or no such group


def _size(number: int) -> str:
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{number / 1e6:,.1f} MB"
