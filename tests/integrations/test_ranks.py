"""Ranks that must verify the same drafts: two processes, joined by gloo."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

RANK = """
import sys
from types import ModuleType, SimpleNamespace
import numpy as np
import torch
import torch.distributed as ranks

rank = int(sys.argv[1])
ranks.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
group = SimpleNamespace(is_first_rank=rank == 0, first_rank=0, cpu_group=None)
"""
# A rank that exits while the other one still receives may end by an error of gloo.
END = """
ranks.barrier()
ranks.destroy_process_group()
"""
VLLM = """
from specds.integrations import vllm_v2
from vllm_shapes import config_of, step_of

state = ModuleType("vllm.distributed.parallel_state")
group.broadcast = lambda part: ranks.broadcast(part, 0)
state.get_tp_group = lambda: group
sys.modules[state.__name__] = sys.modules["vllm.distributed"] = sys.modules["vllm"] = state

text = torch.tensor([[1, 2, 3, 1, 2, 3, 1, 2] + [0] * 24], dtype=torch.int32)
gpu = [SimpleNamespace(gpu=part) for part in (text, torch.tensor([8], dtype=torch.int32))]
states = SimpleNamespace(all_token_ids=gpu[0], total_len=gpu[1], req_id_to_index={"a": 0})
config = config_of(ranks=2, step_cost="ignored", min_prob=0.0, memory_scope="shared")
speculator = vllm_v2.ChainSpeculator(config, torch.device("cpu"), states)
speculator.begin_step(step_of({"a": None}, prompts={"a": text[0, :7].tolist()}))
place = torch.tensor([0])
batch = SimpleNamespace(num_reqs=1, req_ids=["a"], idx_mapping=place, idx_mapping_np=place.numpy())
last = torch.tensor([[2]])
drafts = speculator.propose(batch, None, {}, None, None, torch.tensor([1]), None, last)
print(drafts.tolist(), speculator.draft_token_confidence_probs.tolist())
print(speculator.drafter.stats()["num_opened"])
assert speculator.num_failures == 0
"""
VLLM_AHEAD = """
from specds.integrations.vllm_ahead import AheadSpeculator
""" + VLLM.replace("vllm_v2.ChainSpeculator", "AheadSpeculator").replace(
    "config_of(ranks=2,", "config_of(ranks=2, is_async=True,"
).replace(
    "drafts = speculator",
    """
assert speculator.propose(
    batch, None, {}, None, None, torch.tensor([1]), None, last
).tolist() == [[2] * 4]
speculator.wait()
text[0, 8], gpu[1].gpu[0], last = 3, 9, torch.tensor([[3]])
drafts = speculator""",
)
SGLANG = """
from specds.integrations.sglang import SpecdsCorpus

save = {"snapshot": sys.argv[2] + ".memory", "sync_interval": 60}
corpus = SpecdsCorpus({"memory_scope": "shared", **save}, 5, group=group, vocab_size=100)
text = [1, 2, 3, 1, 2, 3, 1, 2]
request = SimpleNamespace(rid="a", extra_key=None, lora_id=None, cache_salt="ann")
request.sampling_params = SimpleNamespace(custom_params=None)
depth = corpus.begin([request])
token_ids, mask = corpus.batch_get(["a"], [text[-depth:]], [8])
print(token_ids.tolist(), mask.tolist())
print(corpus.drafter.stats()["num_opened"])
assert corpus.num_failures == 0
"""


@pytest.mark.parametrize(
    ("engine", "drafts"),
    [
        (VLLM, "[[3, 1, 2, 3]] [[1."),
        (VLLM_AHEAD, "[[1, 2, 3, 1]] [[0."),
        (SGLANG, "[2, 3, 1, 2, 3] [True"),
    ],
)
def test_first_rank_drafts_for_all_ranks(tmp_path, engine, drafts):
    command = [sys.executable, "-c", RANK + engine + END]
    about = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    about["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    started = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "meet")],
            env=about,
            stdout=-1,
            stderr=-1,
            text=True,
        )
        for rank in range(2)
    ]
    (first, said), (second, _) = (process.communicate(timeout=90) for process in started)
    assert first.startswith(drafts), said
    *told, opened = first.split()
    assert second.split() == [*told, "0"]
    assert opened == "1"
