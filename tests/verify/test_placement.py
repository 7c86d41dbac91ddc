"""Models whose weights lie on several devices or in several processes; needs `accelerate`."""

import subprocess
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForCausalLM

from models import FAMILIES, GREEDY, build, oracle_drafter, plain_generate, tree_generate
from specds.verify import TreeCache

# Each rank runs this. Only rank 0 drafts what comes, and rank 1 drafts another number of nodes.
PROGRAM = """
import sys, torch
from transformers import AutoModelForCausalLM
import specds
from specds.drafters import Session, TokenTree

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], tp_plan="auto", dtype=torch.float32)
assert model._tp_size == 2
rank = torch.distributed.get_rank()
ids = torch.arange(5, 25).view(2, 10)

class Knowing(Session):
    def __init__(self, prompt_ids):
        (self.rest,) = [row[10:] for row in known if row[:10] == list(prompt_ids)]
        self.observe([])

    def draft(self, max_nodes, *_):
        if rank:
            return TokenTree([96] * 3, [-1, 0, 1])
        tokens = self.rest[: min(5, max_nodes)]
        return TokenTree(tokens, range(-1, len(tokens) - 1))

    def observe(self, token_ids, num_verified=None):
        self.rest = self.rest[len(token_ids) :]

class Drafter:
    vocab_size = None
    session = Knowing

for mode in {"do_sample": False}, {"do_sample": True, "temperature": 4.0, "top_k": 0}:
    for budget in 0, 4, "auto":
        settings = {"max_new_tokens": 24, "eos_token_id": None, "pad_token_id": 0, **mode}
        torch.manual_seed(0)
        plain = model.generate(ids, **settings)
        known = plain.tolist()
        torch.manual_seed(0)
        output = specds.generate(model, ids, Drafter(), budget=budget, **settings)
        assert torch.equal(output.sequences, plain)
        assert output.stats.verification == "tree"
        accepted = output.stats.num_accepted_tokens
        assert accepted == 0 if budget == 0 else accepted > 30, accepted
        print("equal")
"""


@pytest.mark.slow
def test_processes_that_share_a_model_verify_the_drafts_of_the_first(tmp_path):
    pytest.importorskip("accelerate")
    build(*FAMILIES["llama"]).save_pretrained(tmp_path / "model")
    (tmp_path / "program.py").write_text(PROGRAM)
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *run, tmp_path / "program.py", tmp_path / "model"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("equal") == 12


def test_a_model_that_is_spread_over_devices_drafts_by_the_generic_way(tmp_path):
    pytest.importorskip("accelerate")
    build(*FAMILIES["llama"]).save_pretrained(tmp_path)
    parts = ("model.embed_tokens", "model.layers.0", "model.norm", "model.rotary_emb", "lm_head")
    places = {**dict.fromkeys(parts, "cpu"), "model.layers.1": "disk"}
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path, device_map=places, offload_folder=tmp_path / "offload", dtype=torch.float32
    )
    assert "forward" in vars(model.model.layers[1])
    expected = plain_generate(model, **GREEDY)
    output = tree_generate(model, oracle_drafter(expected), verification="tree", **GREEDY)
    assert output.sequences.tolist() == [expected]
    assert output.stats.num_accepted_tokens > 20


def test_layers_on_several_devices_have_their_states_there():
    with FakeTensorMode(), torch.no_grad():  # of devices that are not here
        cache = TreeCache(8)
        for width in (3, 2, 40):
            start = cache.length
            cache.reserve(start + width)
            end = start + width if start else 0
            cache.place(torch.arange(start, start + width, device="cuda:0"), end)
            for layer in range(2):
                states = torch.zeros(1, 2, width, 4, device=f"cuda:{layer}")
                for seen in cache.update(states, states, layer):
                    assert seen.shape == (1, 2, start + width, 4)
                    assert seen.device == states.device
            cache.settle()
            cache.commit([[0, *range(2, width)]])  # which moves
