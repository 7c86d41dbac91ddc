"""Cost of a step of k tokens in llama-server, in steps of one token, by drafting garbage.

`PYTHONPATH=benches python -m engines.llama_server_cost --threads 2`
"""

import argparse
import subprocess
import tempfile
from pathlib import Path
from statistics import median

from engines.llama_server import ROOT, Server, drafting

GARBAGE = ROOT / "tests/integrations/engines/garbage.c"
NEW_TOKENS = 40
ASKED = [{"role": "user", "content": 6 * "Write a long story about a fox and a river. "}]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", default=1, type=int)
    parser.add_argument("--widths", default=[1, 2, 3, 4, 6, 8, 16], type=int, nargs="+")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "libgarbage.so")
        command = ["cc", "-shared", "-fPIC", "-I", ROOT / "rust/c", GARBAGE, "-o", library]
        subprocess.run(command, check=True)
        plain = None
        for width in [0, *asked.widths]:
            options = drafting("random", library, spec_extern_n_max=width) if width else []
            with Server("extern", options, f"{folder}/log", threads=asked.threads) as server:
                tokens, seconds = zip(*(step(server, width) for _ in range(3)), strict=True)
            plain = plain or median(seconds)
            print(f"T({median(tokens):.1f}) = {median(seconds) / plain:.2f}", flush=True)


def step(server, width):
    """Return the tokens and the CPU seconds of a step."""
    # The last drafts are shorter, as they end with the text.
    row = server.measured(ASKED, NEW_TOKENS + width, ignore_eos=True)
    return 1 + row["drafted"] / row["passes"], row["seconds"] / row["passes"]


if __name__ == "__main__":
    main()
