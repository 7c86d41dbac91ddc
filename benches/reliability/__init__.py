"""What was tried to break specds: `make reliability` writes the figures of docs/RELIABILITY.md.

A module a section, with its lines in `figures()`.
"""
