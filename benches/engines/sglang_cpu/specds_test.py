"""Tree verification by SGLang's attention in torch, and sabotage of drafts for tests."""

import json
import os
import random
from pathlib import Path

STATS, SABOTAGE = "SPECDS_TEST_STATS", "SPECDS_TEST_SABOTAGE"
"""Environment variables: a file for the drafter's counters, and the kind of sabotage."""


def register():
    """Install the stubs; SGLang calls this entry point in each of its processes."""
    if STATS in os.environ:
        watch()
    unpin()
    from sglang.srt.layers.attention.attention_registry import register_attention_backend
    from sglang.srt.server_args import add_attention_backend_choices

    add_attention_backend_choices(["torch_tree"])
    register_attention_backend("torch_tree")(lambda runner: backend()(runner))


def unpin():
    """Ignore pinning of memory by SGLang's LoRA layers, which torch rejects without a GPU."""
    import torch

    def unpinned(make):
        return lambda *arguments, pin_memory=False, **more: make(*arguments, **more)

    torch.tensor, torch.zeros = unpinned(torch.tensor), unpinned(torch.zeros)
    torch.Tensor.pin_memory = lambda tensor: tensor


def watch():
    """Write statistics to a file, and sabotage drafts if a test asks for it."""
    from specds.integrations.sglang import SpecdsCorpus, _fill

    how = os.environ.get(SABOTAGE)

    def garbage(self, *rows):
        token_ids, mask = _fill(self, *rows)
        roots = range(0, len(token_ids), self.num_nodes)
        for node in set(range(len(token_ids))).difference(roots):
            token_ids[node] = random.randrange(4096)
        return token_ids, mask

    def fails(self, **_):
        raise RuntimeError

    get = garbage if how == "garbage" else SpecdsCorpus.batch_get
    if how == "ignores grammars":
        SpecdsCorpus.choose_allowed = lambda *_: None
    if how == "fails":
        SpecdsCorpus.timed_draft = fails

    def batch_get(self, *rows):
        trees = get(self, *rows)
        told = {**self.drafter.stats(), "num_failures": self.num_failures}
        Path(os.environ[STATS]).write_text(json.dumps(told))
        return trees

    SpecdsCorpus.batch_get = batch_get


def backend():
    import torch
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
    from sglang.srt.mem_cache.memory_pool import KVWriteLoc
    from torch.nn.functional import scaled_dot_product_attention

    class TorchTree(TorchNativeAttnBackend):
        def forward_extend(self, q, k, v, layer, batch, save_kv_cache=True):
            if not batch.forward_mode.is_target_verify():
                return super().forward_extend(q, k, v, layer, batch, save_kv_cache)
            location = KVWriteLoc(batch.out_cache_loc, self.swa_out_cache_loc)
            self.token_to_kv_pool.set_kv_buffer(layer, location, k, v)
            n = batch.spec_info.draft_token_num
            masks = batch.spec_info.custom_mask.view(-1, n, n).bool()
            keys = self.token_to_kv_pool.get_key_buffer(layer.layer_id)
            values = self.token_to_kv_pool.get_value_buffer(layer.layer_id)
            queries = q.view(-1, n, layer.tp_q_head_num, layer.qk_head_dim).transpose(1, 2)
            rows = []
            for row, (query, mask) in enumerate(zip(queries, masks, strict=True)):
                length = int(batch.seq_lens[row])
                pool = self.req_to_token_pool.req_to_token[batch.req_pool_indices[row]]
                at = pool[: length + n].long()
                seen = torch.cat([mask.new_ones(n, length), mask], 1)
                output = scaled_dot_product_attention(
                    query[None],
                    keys[at].transpose(0, 1)[None],
                    values[at].transpose(0, 1)[None],
                    attn_mask=seen,
                    scale=layer.scaling,
                    enable_gqa=layer.tp_q_head_num != layer.tp_k_head_num,
                )
                rows.append(output[0].transpose(0, 1))
            return torch.stack(rows).view(-1, layer.tp_q_head_num * layer.v_head_dim)

    return TorchTree
