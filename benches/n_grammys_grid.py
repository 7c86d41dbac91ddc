"""N-Grammys' (k, w) grid: tokens a call, on what the demo's model itself wrote to held-out prompts.

The paper's drafts come of the model's own weights, so only that model's answers show what they are
worth. Run it by `python benches/n_grammys_grid.py`; it takes three minutes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from demo_setup import prompt_ids, show, table_of
from specds.bench.replay.measure import replay_all, together
from specds.bench.transcripts import Transcript
from specds.demo.held_out import prompts
from specds.drafters import NGrammysConfig, NGrammysDrafter
from specds.loading import load_model

if TYPE_CHECKING:
    from rich.table import Table
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

NUM_PROMPTS, NEW_TOKENS = 24, 128
ROWS, LENGTHS = (1, 5, 10, 20, 25), (2, 4, 6, 8, 10, 12, 14)


def answers(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[Transcript]:
    """What the model writes, greedy."""
    transcripts = []
    for ids in prompt_ids(tokenizer, prompts(NUM_PROMPTS)):
        mask = torch.ones_like(ids)
        written = model.generate(
            ids, attention_mask=mask, do_sample=False, max_new_tokens=NEW_TOKENS
        )
        completion = written[0, ids.shape[1] :].numpy()
        transcripts.append(Transcript("demo", ids[0].numpy(), np.asarray(completion)))
    return transcripts


def grid(model: PreTrainedModel, transcripts: list[Transcript]) -> Table:
    table = table_of((), ("k \\ w", *map(str, LENGTHS)), "tokens a call")
    for k in ROWS:
        cells = []
        for w in LENGTHS:
            config = NGrammysConfig(k=k, w=w)
            drafter = NGrammysDrafter(model, config)
            traces = replay_all(lambda one=drafter: one, config.max_nodes, transcripts)
            stats = together(traces.values()).stats
            cells.append(f"{stats.mean_acceptance_length:.2f}")
        table.add_row(str(k), *cells)
    return table


if __name__ == "__main__":
    model, tokenizer = load_model("demo", device="cpu")
    show(grid(model, answers(model, tokenizer)))
