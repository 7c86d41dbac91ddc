"""Triton kernels for a forward pass over a tree: attention, norms, rotation and gates.

`operations` are functions of tensors alone, so that an engine can use them over its own pages. Each
launches one or two of the Triton `programs`. Imports torch; Triton is imported by the first launch.
"""
