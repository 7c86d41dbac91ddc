"""Verification of a draft by the target: one forward pass over a token tree, and its KV cache.

Read in this order: `cache`, `inputs`, `generic` (a pass over a tree by any model), `attention` and
`fused_forward` (our own attention, and a forward with less Python between the layers), `packed`
(all rows as one sequence, in passes of few shapes), `in_place` (the core computes the model where
it lies), `recordings` (passes as CUDA graphs), `states`, `few_tokens` and `chain` (models with
recurrent layers), `path_rows` (as in N-Grammys' paper) and `support` (the models that can be
verified). Imports `accept`, since on a device acceptance is part of the pass.
"""
