"""Drafters against plain decoding on a running model: what `specds bench generate` measures.

Read in this order: `ways` (who completes a batch of prompts), `measure` (the clock),
`report` and `plots` (the figures), `run` (from names and paths to rows).
"""
