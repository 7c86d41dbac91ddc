"""`specds bench acceptance` with published baselines as further drafters.

`transformers-prompt-lookup` runs in this interpreter; the interpreter of `--baselines-python` runs
`draftretriever`, `arctic-suffix`, `arctic-suffix-tree`, `arctic-suffix-corpus`, `sglang-ngram`,
`sglang-ngram-prompt` and `sglang-ngram-corpus`. `--corpus-tokens N` gives all drafters the same
documents of the datastore, at an even stride, about N tokens.
"""

import sys
import tempfile
from argparse import ArgumentParser
from pathlib import Path

from baselines import baselines
from baselines.corpus import sampled
from specds import cli
from specds.bench.drafters import EXTERNAL_DRAFTERS

if __name__ == "__main__":
    parser = ArgumentParser(add_help=False)
    parser.add_argument("--baselines-python", type=Path)
    parser.add_argument("--corpus-tokens", type=int, metavar="N")
    parser.add_argument("--datastore", type=Path)
    own, arguments = parser.parse_known_args()
    EXTERNAL_DRAFTERS.update(baselines(own.baselines_python))
    with tempfile.TemporaryDirectory() as folder:
        datastore = own.datastore
        if own.corpus_tokens:
            datastore = sampled(datastore, own.corpus_tokens, Path(folder) / "sampled.specds")
        if datastore:
            arguments += ["--datastore", str(datastore)]
        sys.argv = ["specds", "bench", "acceptance", *arguments]
        cli.main()
