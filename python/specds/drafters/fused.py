"""The fused drafter: every source in one tree."""

from __future__ import annotations

from specds._core import fused_session
from specds.drafters.rest import RestDrafter


class FusedDrafter(RestDrafter):
    """Two sources in one tree: a datastore, as REST looks it up, and the request's own text.

    The second is what prompt lookup drafts: the tokens that followed the longest suffix of the
    context when it last came in the request. The nodes of both are ranked by how likely their path
    is: each source trusts its path the more, the longer its match (Laplace's rule of succession,
    ``(L + 1) / (L + 2)`` a token after a match of L tokens).
    """

    _start = staticmethod(fused_session)
