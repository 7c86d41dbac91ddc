"""Recognition of the constraint that a request brings, by its logits processors."""

import copy
import sys
from collections.abc import Iterable
from functools import partial
from typing import Any

from specds.constraints.constraint import MAX_FORCED, Constraint
from specds.constraints.processor import GrammarProcessor, start_of

_OF_FUNCTION = "PrefixConstrainedLogitsProcessor"


def constraint_of(processors: Iterable[Any], prompt_ids: Any) -> Constraint | None:
    """Return the constraint of one row by the processors of the row, None if it has none.

    A processor of an unknown class, and a function that does not declare itself to be pure, may
    keep a state, so drafts never call them.

    Args:
        processors: The results of `processor_of_row`.
        prompt_ids: int64 `(prompt_length,)`, as the processors see it.
    """
    for processor in processors:
        if isinstance(processor, GrammarProcessor):
            start = processor.start(0)
            return None if start is None else start()
        if _is_of_xgrammar(processor) and not processor.matchers:
            return start_of(processor.compiled_grammars[0])()
        if _is_of_function(processor) and is_pure(processor._prefix_allowed_tokens_fn):
            from specds.constraints.of_function import FunctionConstraint

            return FunctionConstraint(partial(processor._prefix_allowed_tokens_fn, 0), prompt_ids)
    return None


def constraint_of_engine(grammar: Any, max_forced: int = MAX_FORCED) -> Constraint | None:
    """Return a constraint that begins where a grammar of vLLM or SGLang is; it moves a copy.

    None for a grammar of another library. The matchers have the same names in both engines.

    Args:
        grammar: The engine's object.
        max_forced: The most tokens of a forced text that are drafted.
    """
    compiled, of_llguidance = getattr(grammar, "ctx", None), getattr(grammar, "ll_matcher", None)
    if compiled is not None:
        from specds.constraints.of_xgrammar import XgrammarConstraint

        return XgrammarConstraint(compiled, grammar.matcher.fork(), max_forced)
    if of_llguidance is not None:
        from specds.constraints.of_llguidance import LlguidanceConstraint

        return LlguidanceConstraint(of_llguidance, resets=False, max_forced=max_forced)
    return None


def has_constraint(processor: Any) -> bool:
    is_ours = isinstance(processor, GrammarProcessor)
    return is_ours or _is_of_xgrammar(processor) or _is_of_function(processor)


def num_grammars(processor: Any) -> int:
    """Return the number of grammars of a processor, 1 if all rows share one."""
    if isinstance(processor, GrammarProcessor):
        return len(processor.starts)
    return len(processor.compiled_grammars) if _is_of_xgrammar(processor) else 1


def processor_of_row(processor: Any, row: int, num_rows: int) -> Any:
    if num_rows == 1 or not has_constraint(processor):
        return processor
    if isinstance(processor, GrammarProcessor):
        return processor.of_row(row)
    of_row = copy.copy(processor)
    if _is_of_function(processor):
        function = processor._prefix_allowed_tokens_fn
        allowed: Any = lambda _, ids: function(row, ids)  # noqa: E731  (it has an attribute)
        allowed.is_pure = is_pure(function)
        of_row._prefix_allowed_tokens_fn = allowed
        return of_row
    grammars = processor.compiled_grammars
    of_row.compiled_grammars = [grammars[row if len(grammars) > 1 else 0]]
    of_row.matchers = []
    return of_row


def is_pure(function: Any) -> bool:
    """Return whether a function declares by its attribute `is_pure` that it keeps no state."""
    return bool(getattr(function, "is_pure", False))


def _is_of_function(processor: Any) -> bool:
    return type(processor).__name__ == _OF_FUNCTION


def _is_of_xgrammar(processor: Any) -> bool:
    of_transformers = sys.modules.get("xgrammar.contrib.hf")
    return of_transformers is not None and isinstance(processor, of_transformers.LogitsProcessor)
