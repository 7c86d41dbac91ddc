"""Smoke test of an installed wheel: build, open, look up and draft."""

import sys
import tempfile
from pathlib import Path

import specds
import specds.models.resolve
import specds.papers

assert not {"torch", "transformers", "rich", "typer"} & set(sys.modules), "import must stay light"

with tempfile.TemporaryDirectory() as folder:
    target = Path(folder, "tiny.specds")
    documents = [[5, 6, 7, 8], [5, 6, 9]]
    specds.build_from_token_ids(documents, target, vocab_size=100, separator=0)
    datastore = specds.Datastore(target)
    datastore.verify()
    tree = specds.papers.RestDrafter(datastore).session([1, 5, 6]).draft(4)
    assert tree.token_ids.tolist() == [7, 9, 8, 0], tree.token_ids
    assert tree.parents.tolist() == [-1, -1, 0, 1], tree.parents

try:  # the demo's models are a package of their own
    found = str(specds.models.resolve.demo_models())
except ImportError as error:
    found = str(error)
assert found.endswith("pip install ./packages/demo"), found

print(f"specds {specds.__version__}: the wheel works")
