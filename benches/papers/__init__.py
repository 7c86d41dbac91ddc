"""The papers' ablations, each a table of drafters over the same answers.

A part is a row of `PARTS` (`__main__`): a figure or table of a paper, and a function that yields
the rows of ours. `answers` replays a drafter over answers, `retrieval` has the parts of REST and
ADED (`published_rest` drafts as REST's own program does), `n_grammys` and `hsddw` those of their
papers. docs/papers.md has what came of them.
"""
