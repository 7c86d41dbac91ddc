"""Jobs that write a datastore, for the tests that kill them.

Every job ends in the datastore FOLDER/out, whatever an earlier run of the same job has left.
"""

import numpy as np

from specds.drafters import Memory
from specds.indexing import BuildOptions, DatastoreBuilder, add_from_memory, compact, merge

NUM_DOCUMENTS = 700


def documents():
    """Documents of tokens below 100, of which every tenth comes twice."""
    random = np.random.default_rng(7)
    made = [random.integers(0, 100, random.integers(1, 60)) for _ in range(NUM_DOCUMENTS)]
    return [made[index // 10] if index % 10 == 3 else made[index] for index in range(NUM_DOCUMENTS)]


def write(path, chosen, *, max_shard_tokens=1500, **options):
    """Build a datastore in many steps, or resume its build."""
    with DatastoreBuilder(
        path,
        vocab_size=100,
        separator=100,
        corpus=["numbers"],
        max_shard_tokens=max_shard_tokens,
        drop_duplicates=True,
        plan="numbers",
        **options,
    ) as builder:
        for document in chosen[builder.num_given :]:
            builder.add_documents(document, [len(document)])
        builder.finish()


def prepare(job, folder):
    """Write the files with which a job begins."""
    made = documents()
    if job == "add":
        write(folder / "out", made[:200])
    elif job == "merge":
        write(folder / "one", made[:300])
        write(folder / "other", made[300:])
    elif job == "compact":
        write(folder / "out", made, max_shard_tokens=400)
    elif job == "refresh":
        write(folder / "out", made[:200])
        save(folder / "memory", made[200:])
    elif job == "save":
        save(folder / "out", made[:20])


def save(path, texts):
    memory = Memory(100)
    for text in texts:
        memory.insert("ann", text)
    memory.save(path)


def saved(path):
    """Return the texts of a request cache; the names of its files are random."""
    try:
        texts = Memory.open(path, 100).texts("ann")
    except FileNotFoundError:
        return {}
    return {str(number): text.tobytes() for number, text in enumerate(texts)}


def run(job, folder):
    made = documents()
    if job == "build":
        write(folder / "out", made, overwrite=True)
    elif job == "add":
        write(folder / "out", made[200:], append=True)
    elif job == "merge":
        merge([folder / "one", folder / "other"], folder / "out", overwrite=True)
    elif job == "compact":
        compact(folder / "out", max_shard_tokens=5000)
    elif job == "refresh":
        options = BuildOptions(max_shard_tokens=1500)
        add_from_memory(folder / "out", folder / "memory", "ann", options)
    elif job == "save":
        save(folder / "out", made)
