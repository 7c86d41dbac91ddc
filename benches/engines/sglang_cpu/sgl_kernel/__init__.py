"""Stubs of SGLang's CPU kernels, which are not on PyPI, for tests of a Llama-like model.

They are slow, in pure torch. Any other kernel raises an error with its name when called.
"""

import ctypes


def assign_extend_cache_locs_cpu(req_pool_indices, req_to_token, start, end, out, pool_len):
    at = 0
    for row, first, last in zip(
        req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True
    ):
        out[at : at + last - first] = req_to_token[row, first:last]
        at += last - first


def assign_req_to_token_pool_cpu(req_pool_indices, req_to_token, start, end, locs, pool_len):
    at = 0
    for row, first, last in zip(
        req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True
    ):
        req_to_token[row, first:last] = locs[at : at + last - first].to(req_to_token.dtype)
        at += last - first


def fill_accept_out_cache_loc_cpu(accept_index, out_cache_loc, accept_out_cache_loc):
    kept = accept_index[accept_index > -1].long()
    accept_out_cache_loc[: kept.numel()] = out_cache_loc[kept]


def fill_bonus_tokens_cpu(accept_tokens, accept_lens, bonus, stride):
    last = accept_lens.long()[:, None] - 1
    bonus.copy_(accept_tokens.view(-1, stride).gather(1, last)[:, 0])


def copy_all_layer_kv_cache_cpu(data_ptrs, strides, tgt_loc, src_loc):
    targets, sources = tgt_loc.tolist(), src_loc.tolist()
    for pointer, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(pointer + source * stride, stride) for source in sources]
        for target, row in zip(targets, rows, strict=True):
            ctypes.memmove(pointer + target * stride, row, stride)


def verify_tree_greedy_cpu(
    predicts,
    accept_index,
    accept_token_num,
    candidates,
    retrive_index,
    retrive_next_token,
    retrive_next_sibling,
    target_predict,
):
    drafts, wanted, places = candidates.tolist(), target_predict.tolist(), retrive_index.tolist()
    children, siblings = retrive_next_token.tolist(), retrive_next_sibling.tolist()
    for row in range(len(drafts)):
        node, accepted = 0, 0
        accept_index[row, 0] = places[row][0]
        while accepted + 1 < accept_index.shape[1]:
            child = children[row][node]
            while child != -1 and drafts[row][child] != wanted[row][node]:
                child = siblings[row][child]
            if child == -1:
                break
            predicts[places[row][node]] = wanted[row][node]
            accepted += 1
            accept_index[row, accepted] = places[row][child]
            node = child
        accept_token_num[row] = accepted
        predicts[places[row][node]] = wanted[row][node]


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_, **__):
        raise NotImplementedError(f"sgl_kernel.{name} has no stub")

    return missing
