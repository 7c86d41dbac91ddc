"""The memory of earlier requests: what it takes of a machine, and that no writer loses anything."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from datastores import names
from specds.drafters import FusedDrafter, Memory

OPENS_IN_8_MB = """
import resource, sys
from pathlib import Path
from specds.drafters import Memory
fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
most = (int(fields["VmData"].split()[0]) << 10) + (8 << 20)
resource.setrlimit(resource.RLIMIT_DATA, (most, most))
memory = Memory.open(sys.argv[1], 32_000, max_bytes=1 << 20)
assert 900_000 < memory.num_bytes <= memory.max_bytes
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
@pytest.mark.parametrize(
    ("num_tenants", "num_texts", "length"),
    [(1, 3000, 1000), (1000, 30_000, 25), (30_000, 30_000, 1)],
)
def test_a_snapshot_of_any_size_is_opened_within_the_bytes_of_the_memory(
    tmp_path, num_tenants, num_texts, length
):
    memory, random = Memory(32_000), np.random.default_rng(0)
    for number in range(num_texts):
        memory.insert(str(number % num_tenants), random.integers(0, 32_000, length))
    memory.save(tmp_path / "memory")
    assert memory.num_bytes > 16 << 20
    command = [sys.executable, "-c", OPENS_IN_8_MB, str(tmp_path / "memory")]
    assert subprocess.run(command, check=False).returncode == 0


BESIDE = """
import sys
from specds.drafters import FusedDrafter, Memory
memory = Memory(100_000)
for number in range(30):
    memory.insert(f"{sys.argv[2]}-{number % 3}", [number, *range(number, 100 + number)])
    memory.insert("both", [int(sys.argv[2]), number])
    FusedDrafter(memory=memory).save(sys.argv[1])
"""


def test_processes_that_save_one_memory_at_once_lose_nothing(path):
    command = [sys.executable, "-c", BESIDE, str(path)]
    processes = [subprocess.Popen([*command, str(number)]) for number in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    memory = Memory.open(path, 100_000)
    assert memory.num_tenants == 4 * 3 + 1
    assert memory.num_tokens == 4 * 30 * (101 + 2)
    assert names(path.parent) == ["memory"]
    before = path.read_bytes()
    with pytest.raises(ValueError, match="of another tokenizer"):
        Memory(7).save(path, merge=True)
    assert path.read_bytes() == before
    Memory(7).save(path)
    assert Memory.open(path, 7).num_tenants == 0


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_requests_that_nobody_finishes_are_gone_with_their_sessions():
    memory = Memory(1000, max_bytes=1 << 20)
    drafter = FusedDrafter(memory=memory)
    resident = []
    for batch in range(6):
        sessions = [drafter.session([1, 2, 3] * 50, f"{batch}-{n}") for n in range(500)]
        for session in sessions:
            session.draft(16)
        del session, sessions
        resident.append(int(Path("/proc/self/statm").read_text().split()[1]))
    assert max(resident[2:]) < resident[1] + 1000, "500 requests take 5000 pages"
    assert memory.num_tokens == 0
    memory.insert("ann", [1] * 40_000)
    memory.insert("bob", [1] * 40_000)
    assert memory.num_bytes <= memory.max_bytes
    assert memory.num_tenants < 3000, "who keeps nothing makes room"
