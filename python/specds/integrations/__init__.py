"""Adapters for serving engines: one file for each engine, over `specds.EngineDrafter`.

Nothing here is imported by the package itself, and no file imports an engine before the engine
imports it: see the page on serving for the command lines.
"""
