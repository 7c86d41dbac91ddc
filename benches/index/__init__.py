"""The bars that the datastore is held to, and the same work done by its rivals.

`tokens` writes a corpus down as tokens once; `builders` index those tokens, each in a process of
its own (`child`); `answers` compares what they answer before anything that they did is believed.
`serving` times and weighs a datastore in use; `published_rest` is the choice of draft tokens that
REST's authors published; `acceptance` replays recorded answers against it and ours, and
`rival_drafts` against another's; `end_to_end` is `specds build`. `report` holds each figure against
its bar. Linux alone: memory is read from /proc.
"""
