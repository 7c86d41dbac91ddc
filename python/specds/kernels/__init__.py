"""Triton kernels for a pass over a tree: attention, and what comes between matrix products.

`operations` are functions of tensors alone, so an engine can use them over its own pages; each
launches one or two of the Triton `programs`. Imports torch, and Triton where something is launched.
"""
