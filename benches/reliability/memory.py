"""Resident size of memories compared with their bound."""

import subprocess
import sys

CASES = {
    "44 M tokens of one tenant": ("one", 44_000_000),
    "44 M tokens of 37 tenants": ("some", 44_000_000),
    "100,000 tenants of 20 tokens": ("many", 2_000_000),
    "20,000 open requests": ("open", 20_000),
}
"""Kind, and number of tokens or requests."""

BOUND = 64
"""Bound of the memory in MiB."""


def figures() -> list[str]:
    """Return the rows of the table, each measured in its own process."""
    rows = [
        "| content | limit | bytes counted | peak resident memory |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, (kind, number) in CASES.items():
        command = [sys.executable, "-c", CHILD, kind, str(number), str(BOUND)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        counted, resident = (float(part) for part in output.split())
        rows.append(f"| {name} | {BOUND} MiB | {counted:.0f} MiB | {resident:.0f} MiB |")
    return rows


CHILD = """
import sys
import numpy as np
from specds.drafters import FusedDrafter, Memory

def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096 / 2**20

kind, number, bound = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
random = np.random.default_rng(0)
source = np.minimum((random.pareto(0.9, 4_000_000) * 20).astype(int), 31_999)
memory = Memory(32_000, max_bytes=bound << 20)
drafter = FusedDrafter(memory=memory)
start, most, done, index, kept = resident(), 0.0, 0, 0, []
while done < number:
    length = {"many": 20, "open": 100}.get(kind, int(random.integers(50, 4000)))
    begin = int(random.integers(0, len(source) - length))
    text = source[begin : begin + length]
    tenant = {"one": "a", "some": str(index % 37)}.get(kind, str(index))
    if kind == "open":
        session = drafter.session(text, tenant)
        session.draft(16)
        session.observe([1, 2, 3])
        kept.append(session)
    else:
        memory.insert(tenant, text)
    done += 1 if kind == "open" else length
    index += 1
    if index % 50 == 0:
        most = max(most, resident() - start)
print(memory.num_bytes / 2**20, most)
"""
