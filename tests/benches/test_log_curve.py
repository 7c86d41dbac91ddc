"""A log becomes a corpus: acceptance rises with it, and the memory stays within its bytes."""

from types import SimpleNamespace

import numpy as np

from datastores import build
from log_curve import curve
from specds.bench.transcripts import Transcript
from specds.build.local import facts_of


def test_acceptance_rises_with_the_log_and_memory_stays_within_its_bytes(tmp_path, demo_tokenizer):
    rng = np.random.default_rng(0)
    texts = rng.integers(0, 250, size=(400, 100), dtype=np.uint32)
    log = build(tmp_path / "log", texts.tolist(), **facts_of(demo_tokenizer, "demo"))
    # Nothing foretells them but the log's own end.
    answers = [Transcript("late", text[:20], text[20:60]) for text in texts[-5:]]
    given = SimpleNamespace(memory_bytes=1 << 18, nodes=8)
    points = [0, 10_000, texts.size, 1e9]
    rows = [*curve([log], answers, demo_tokenizer, tmp_path, points, given)]
    tokens, lengths, in_memory, most, shards = map(list, zip(*rows, strict=True))
    assert tokens == [0, 0.01, 0.04, 0.04], "the log ends before the last"
    assert max(lengths[:2]) < 1.2, "but by chance"
    assert lengths[2] == lengths[3] > 3
    assert shards == sorted(shards)
    assert shards[0] == 0 < shards[-1]
    assert in_memory[-1] < tokens[-1], "the rest is in the datastore alone"
    assert most[-1] * 1e6 <= given.memory_bytes
