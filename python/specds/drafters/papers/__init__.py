"""Drafters of four papers, for comparison; `specds.papers` exports them."""
