"""Reliability experiments: `make reliability` writes the tables of docs/RELIABILITY.md.

Each module has a section, with its table in `figures()`.
"""
