"""`specds bench replay` with rivals among the drafters: `python -m rivals [--rivals-python P] ...`.

Rivals: `transformers-prompt-lookup`, and in the interpreter of `--rivals-python` `draftretriever`,
`arctic-suffix`, `arctic-suffix-tree` and `arctic-suffix-corpus`.
"""

import sys
from argparse import ArgumentParser
from pathlib import Path

from rivals import entrants
from specds import cli
from specds.bench.engines import ENTRANTS

if __name__ == "__main__":
    parser = ArgumentParser(add_help=False)
    parser.add_argument("--rivals-python", type=Path)
    own, arguments = parser.parse_known_args()
    ENTRANTS.update(entrants(own.rivals_python))
    sys.argv = ["specds", "bench", "replay", *arguments]
    cli.main()
