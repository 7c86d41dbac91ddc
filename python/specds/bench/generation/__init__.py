"""Drafters against plain decoding on a running model: what `specds bench generate` measures.

Read in this order: `ways` (who completes a batch of prompts), `measure` (the clock), `report` (the
figures), `run` (from options to rows).
"""
