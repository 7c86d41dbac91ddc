"""A fake of vLLM's V2 runner."""

from types import SimpleNamespace

import pytest

from specds.integrations.vllm_ahead import AheadSpeculator
from specds.integrations.vllm_v2 import ChainSpeculator
from vllm_shapes import config_of, step_of


class StubRunnerV2:
    """The states of vLLM's V2 runner, on a CPU."""

    def __init__(self, **about):
        self.torch = pytest.importorskip("torch")
        self.texts = self.torch.full((8, 32), 7, dtype=self.torch.int32)
        self.lengths = self.torch.zeros(8, dtype=self.torch.int32)
        on_gpu = {"all_token_ids": self.texts, "total_len": self.lengths}
        states = {name: SimpleNamespace(gpu=part) for name, part in on_gpu.items()}
        self.states = SimpleNamespace(**states, req_id_to_index={"a": 5, "b": 2, "c": 0})
        made = AheadSpeculator if about.get("is_async") else ChainSpeculator
        self.speculator = made(config_of(**about), self.torch.device("cpu"), self.states)

    def step(self, rows, dummy_run=False, about=None, **scheduler):
        """Draft for rows of a name, a text and a number of sampled tokens.

        Returns the drafts of the model's input, and those that the scheduler gets.
        """
        torch = self.torch
        names, given, sampled = zip(*rows, strict=True)
        places = torch.tensor([self.states.req_id_to_index[name] for name in names])
        for place, text in zip(places, given, strict=True):
            self.texts[place, : len(text)] = torch.tensor(text, dtype=torch.int32)
            self.lengths[place] = len(text)
        batch = SimpleNamespace(
            num_reqs=len(rows),
            req_ids=names,
            idx_mapping=places,
            idx_mapping_np=places.numpy(),
        )
        prompts = {name: text[: len(text) - number] for name, text, number in rows}
        last = torch.zeros(8, 1, dtype=torch.int64)
        last[places, 0] = torch.tensor([text[-1] for text in given])
        self.speculator.begin_step(step_of(prompts=prompts, **scheduler))
        drafts = self.speculator.propose(
            batch,
            *(None, {}, None, None),
            *(torch.tensor(sampled), None, last),
            **{"dummy_run": dummy_run, **(about or {})},
        ).tolist()
        taken = SimpleNamespace(req_ids=names, draft_token_ids=[[-1] * 4 for _ in names])
        return drafts, [len(row) for row in self.speculator.cut(taken).draft_token_ids]
