"""The bars that the datastore is held to, and the same work done by its rivals.

`tokens` writes a corpus down as tokens once; `builders` index those tokens, each in a process of
its own (`child`), and what they count is compared with a scan before anything that they did is
believed. `serving` times and weighs a datastore in use. `report` holds each figure against its bar.
`scale` is a run of its own, on text of any size (`made_text`). Linux alone: memory is read from
/proc.
"""
