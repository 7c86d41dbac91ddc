"""Drafters against plain decoding on a running model: what `specds bench generate` measures.

Read in this order: `shapes` (models of random weights), `ways` (what is generated, and by whom),
`measure` (the clock), `curve` (what a pass costs by its nodes), `report` and
`plots` (the figures), `run` (from names and paths to rows).
"""
