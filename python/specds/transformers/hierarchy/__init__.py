"""Hierarchies: small models draft for larger ones, a datastore for the smallest (HSDDW and beyond).

Read in this order: `config`, `context` (speculative tokens), `draft` (the result of a level),
`levels` (a level drafts by verifying the level below it), `drafter` (the chain of one request). The
rule that accepts a sampled token is `specds.transformers.accept.draws`.
"""
