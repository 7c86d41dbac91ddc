"""How many nodes of a draft are verified: a fixed number, or what pays by the clock.

Read in this order: `step_cost` (what a pass takes), `experience` (how far drafts are trusted),
`policy` (drafting and sizing, step by step). Imports `specds.drafters` and `specds.verify`.
"""
