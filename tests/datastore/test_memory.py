"""Memory use of a request cache."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

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

INSERTS_IN_LITTLE = """
import resource, sys
import numpy as np
from pathlib import Path
from specds.drafters import Memory
memory, text = Memory(97, max_bytes=1 << 30), np.arange(2_000_000, dtype=np.uint32) % 97
memory.insert("a", text[:100])
size = next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmSize" in line)
most = (int(size.split()[1]) << 10) + (int(sys.argv[1]) << 20)
resource.setrlimit(resource.RLIMIT_AS, (most, most))
try:
    memory.insert("a", text)
except MemoryError as error:
    assert "no memory for" in str(error)
    assert memory.num_tokens == 100
    memory.insert("a", text[1:100])
    print("refused")
else:
    print("inserted")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("room", "ends"), [(4, "refused"), (30, "refused"), (900, "inserted")])
def test_text_without_room_in_memory_is_refused_and_ends_no_process(room, ends):
    command = [sys.executable, "-c", INSERTS_IN_LITTLE, str(room)]
    assert subprocess.check_output(command, text=True).strip() == ends


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("num_tenants", "num_texts", "length"),
    [(1, 3000, 1000), (1000, 30_000, 25), (30_000, 30_000, 1)],
)
def test_opening_a_large_snapshot_stays_within_the_size_limit(
    tmp_path, num_tenants, num_texts, length
):
    memory, random = Memory(32_000), np.random.default_rng(0)
    for number in range(num_texts):
        memory.insert(str(number % num_tenants), random.integers(0, 32_000, length))
    memory.save(tmp_path / "memory")
    assert memory.num_bytes > 16 << 20
    command = [sys.executable, "-c", OPENS_IN_8_MB, str(tmp_path / "memory")]
    assert subprocess.run(command, check=False).returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_unfinished_requests_are_freed_with_their_sessions():
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
    assert memory.num_tenants < 3000, "tenants without texts are evicted"
