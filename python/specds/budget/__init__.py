"""How many nodes of a draft are verified: a fixed number, or what pays by the clock.

The rule itself is the core's (`rust/core/budget`). `step_cost` measures what a pass takes, `policy`
drafts and sizes, step by step. Imports `specds.drafters` and `specds.verify`.
"""
