"""Benchmarks of drafters: accepted tokens and speed of generation (`specds bench`).

`replay` needs recorded answers alone, `generation` runs a model. Read in this order: `transcripts`
(what is replayed or completed), `drafters`, `harness` (how rows are shown), `replay`
or `generation` (from options to a document of rows), `page` (the document drawn).
"""
