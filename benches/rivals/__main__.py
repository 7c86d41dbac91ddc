"""`specds bench replay` with rivals among the drafters: `python -m rivals [--rivals-python P] ...`.

Rivals: `transformers-prompt-lookup`, and in the interpreter of `--rivals-python` `draftretriever`,
`arctic-suffix`, `arctic-suffix-tree` and `arctic-suffix-corpus`, `sglang-ngram`,
`sglang-ngram-prompt` and `sglang-ngram-corpus`. `--corpus-tokens N` gives all of them the same
documents of the datastore, at an even stride, about N tokens.
"""

import sys
import tempfile
from argparse import ArgumentParser
from pathlib import Path

from rivals import entrants
from rivals.corpus import sampled
from specds import cli
from specds.bench.engines import ENTRANTS

if __name__ == "__main__":
    parser = ArgumentParser(add_help=False)
    parser.add_argument("--rivals-python", type=Path)
    parser.add_argument("--corpus-tokens", type=int, metavar="N")
    parser.add_argument("--datastore", type=Path)
    own, arguments = parser.parse_known_args()
    ENTRANTS.update(entrants(own.rivals_python))
    with tempfile.TemporaryDirectory() as folder:
        datastore = own.datastore
        if own.corpus_tokens:
            datastore = sampled(datastore, own.corpus_tokens, Path(folder) / "sampled.specds")
        if datastore:
            arguments += ["--datastore", str(datastore)]
        sys.argv = ["specds", "bench", "replay", *arguments]
        cli.main()
