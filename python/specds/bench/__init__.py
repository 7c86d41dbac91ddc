"""Benchmarks of drafters: accepted tokens and speed of generation (`specds bench`).

`acceptance` needs only recorded answers, `generation` runs a model. Read in this order:
`transcripts` (recorded answers), `drafters`, `harness` (inputs and tables of rows), then
`acceptance` or `generation`.
"""
