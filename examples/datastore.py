"""Datastore of a folder of texts: build, query, draft."""

import tempfile
from pathlib import Path

import specds
from specds.models.load import load_model

model, tokenizer = load_model("demo")
with tempfile.TemporaryDirectory() as folder:
    texts, out = Path(folder) / "texts", Path(folder) / "texts.specds"
    texts.mkdir()
    (texts / "words.py").write_text("def words(text):\n    return text.lower().split()\n" * 3)
    report = specds.build_datastore(str(texts), tokenizer, out)
    print(f"{report.num_tokens} tokens at {report.path}")

    datastore = specds.Datastore(out)
    asked = tokenizer("return text.lower()")["input_ids"]
    print(f"{datastore.count(asked)} times, followed by:")
    for token, count in zip(*datastore.continuations(asked), strict=True):
        print(f"{count} x {tokenizer.decode([token])!r}")

    ids = tokenizer("def words(text):\n", return_tensors="pt")["input_ids"]
    output = specds.generate(model, ids, specds.FusedDrafter(datastore), max_new_tokens=24)
    print(output.stats)
