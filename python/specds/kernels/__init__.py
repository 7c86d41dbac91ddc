"""What is launched on a device beside matrix products: tree attention, and what joins layers.

`operations` are functions of tensors; each launches one of the Triton `programs`. They know no
model, no cache and no draft, so an engine can use them over its own pages. Imports torch, and
Triton where something is launched.
"""
