"""Grammars of structured output: what they force and what they forbid in drafts.

`constraint` defines the interface, which `of_xgrammar`, `of_llguidance` and `of_function`
implement. `recognition` finds the constraint of a request, `processor` enforces one, and `session`
drafts by one. A library is imported only after a request brings one of its objects.
"""

from specds.constraints.constraint import (
    Constraint,
    Guide,
    MaskingConstraint,
    MatcherConstraint,
    Path,
)
from specds.constraints.processor import GrammarProcessor
from specds.constraints.recognition import (
    constraint_of,
    constraint_of_engine,
    has_constraint,
    processor_of_row,
)
from specds.constraints.session import ConstrainedSession, num_candidates

__all__ = [
    "ConstrainedSession",
    "Constraint",
    "GrammarProcessor",
    "Guide",
    "MaskingConstraint",
    "MatcherConstraint",
    "Path",
    "constraint_of",
    "constraint_of_engine",
    "has_constraint",
    "num_candidates",
    "processor_of_row",
]
