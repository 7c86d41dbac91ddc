"""What does a model add that ranks the drafts of recorded answers?

    python benches/ranked_replay.py MODEL DATASTORE TRANSCRIPTS...

The model's tokenizer cuts the answers into tokens; whoever wrote them is replayed greedily.
"""

import sys
from collections import Counter
from pathlib import Path

import torch

from specds import Datastore, FusedDrafter
from specds.bench.replay.measure import replay
from specds.bench.transcripts import read_files
from specds.drafters import FusedConfig
from specds.hierarchy import HierarchyConfig, HierarchyDrafter
from specds.loading import load_model

NUM_NODES = 32


def main(name, datastore, *transcripts):
    torch.set_num_threads(1)
    model, tokenizer = load_model(name, device="cpu")
    alone, beside = (
        FusedDrafter(Datastore(datastore), FusedConfig(effort="normal")) for _ in range(2)
    )
    ranked = HierarchyDrafter({"fused": beside, "ranker": model}, HierarchyConfig(joined=True))
    count = Counter()
    for each in read_files([*map(Path, transcripts)], tokenizer):
        for way, drafter in (("fused", alone), ("ranked", ranked)):
            trace = replay(drafter.session(each.prompt_ids), each, NUM_NODES)
            count[way] += trace.lengths[0][1]
        count["tokens"] += len(each.completion_ids)
        print(dict(count), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
