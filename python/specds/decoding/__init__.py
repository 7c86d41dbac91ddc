"""The decoding loop: its budget of nodes, its steps and its statistics.

Imports `specds.drafters`, `specds.accept` and `specds.verify`.
"""
