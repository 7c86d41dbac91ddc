"""A sandbox of Jinja in which the work and the texts of any template are bounded.

A call has a budget in units of about 30 ns or four characters. Parts of the template that take
time or make values spend it: passes of loops, calls, filters, operators, lists and texts. Before a
call that can make much of little (`'a' * 10**9`, `center`, `replace`), the size is estimated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import wraps
from math import prod
from typing import Any

from jinja2 import TemplateError as Refusal
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

# Templates of models have at most half as many characters.
_MOST_CHARACTERS = 1 << 16
_UNITS = 8_000_000
_UNITS_PER_INPUT = 500
_OF_CALL = 20
_CHARACTERS_PER_UNIT = 4
_MOST_BITS = 4096


def _names(of: str) -> frozenset[str]:
    return frozenset(of.split())


# Methods and filters whose results are not larger than what they are given.
_SMALL = _names("""
    abs attr capitalize casefold count d default dictsort e endswith escape find first float
    forceescape get groupby index int isalnum isalpha isascii isdecimal isdigit isidentifier islower
    isnumeric isprintable isspace istitle isupper items keys last length list lower lstrip map max
    min partition random reject rejectattr removeprefix removesuffix reverse rfind rindex rpartition
    rsplit rstrip safe select selectattr sort split splitlines startswith string strip swapcase
    title trim unique upper values wordcount
""")
# Filters that read containers without their elements.
_SHALLOW = _names("""
    attr batch count d default dictsort first items last length list map random reject rejectattr
    reverse select selectattr slice
""")
# Those of HTML and long numbers, which may take time in the square of what they are given.
_SLOW = _names("pprint round striptags sum urlize wordwrap xmlattr")
_COMPARES = _names("in eq equalto == ne != gt greaterthan > ge >= lt lessthan < le <=")
_WIDTHS = re.compile(r"\d{5}")
_BUDGET: ContextVar[Budget] = ContextVar("budget")


class Budget:
    """The work that is left of a call."""

    def __init__(self, *given: Any) -> None:
        # Containers do not change, and are kept: their sizes stay theirs.
        self._known: dict[int, tuple[Any, int]] = {}
        self._left = _UNITS
        self._left += _UNITS_PER_INPUT * sum(map(self.size, given))

    def spend(self, units: int) -> None:
        self._left -= units
        self.require(0)

    def spend_on(self, made: Any) -> None:
        """Spend the size of a new value, of a container that of its own elements alone."""
        size = self.size(made)
        is_container = isinstance(made, (list, tuple, dict))
        self.spend(_OF_CALL + (len(made) if is_container else size // _CHARACTERS_PER_UNIT))
        self.require(size)

    def spend_on_all(self, read: Any) -> None:
        """Spend the size of a value that is read with all of its elements."""
        is_text = isinstance(read, (str, bytes))
        self.spend(_OF_CALL + self.size(read) // (_CHARACTERS_PER_UNIT if is_text else 1))

    def require(self, units: int) -> None:
        """Raise an error unless so much is left."""
        if units > self._left:
            raise SecurityError("it takes too much time or memory")

    def size(self, value: Any) -> int:
        """Return the characters and elements of a value, a repeated part as often as it occurs."""
        if isinstance(value, (str, bytes)):
            return len(value)
        if isinstance(value, (list, tuple, dict)):
            if id(value) not in self._known:
                parts = value if not isinstance(value, dict) else (*value, *value.values())
                self._known[id(value)] = value, 1 + sum(self.size(part) + 1 for part in parts)
            return self._known[id(value)][1]
        if isinstance(value, Namespace):
            raise SecurityError("it makes a text or a list of a namespace")
        return len(value) if isinstance(value, Sized) else 1


@contextmanager
def budget_of(*given: Any) -> Iterator[None]:
    """Bound the work of a call by the size of what it is given."""
    token = _BUDGET.set(Budget(*given))
    try:
        yield
    finally:
        _BUDGET.reset(token)


def _magnitude(value: Any) -> int:
    return abs(value) if isinstance(value, int) else _BUDGET.get().size(value)


def _require_result(name: str, given: tuple[Any, ...]) -> None:
    """Check, before a method or filter is called, that its result fits into the budget."""
    budget = _BUDGET.get()
    if name in _SMALL:
        return
    if name == "replace" and len(given) > 2 and all(isinstance(of, str) for of in given[:3]):
        text, old, new = given[:3]
        budget.require(len(text) + text.count(old) * len(new))
        return
    sizes = [max(_magnitude(of), 1) for of in given]
    if name in ("format", "format_map") and any(map(_has_width, given)):
        raise SecurityError("it formats a value with a large width")
    most = sum(sizes) + prod(sizes[:2]) if name == "join" else prod(sizes)
    budget.require(most**2 if name in _SLOW else most)


def _as_lists(given: Iterable[Any]) -> tuple[Any, ...]:
    """Replace iterators by lists, whose sizes are known."""
    return tuple([*of] if isinstance(of, Iterator) else of for of in given)


def _has_width(text: Any) -> bool:
    return isinstance(text, str) and _WIDTHS.search(text) is not None


def _bounded_filter(name: str, function: Any) -> Callable[..., Any]:
    # The first argument of some is the context, the environment or what an escape depends on.
    skipped = int(hasattr(function, "jinja_pass_arg"))

    @wraps(function)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        budget = _BUDGET.get()
        if name == "join":
            args = _as_lists(args)
        given = (*args[skipped:], *kwargs.values())
        for of in given:
            budget.spend_on(of) if name in _SHALLOW else budget.spend_on_all(of)
        _require_result(name, given)
        result = function(*args, **kwargs)
        budget.spend_on(result)
        return result

    return bounded


class _Charge(NodeTransformer):
    """Puts calls that spend the budget into a template."""

    def visit_Output(self, node: nodes.Output) -> Any:  # noqa: N802
        self.generic_visit(node)
        texts = (of for of in node.nodes if isinstance(of, nodes.TemplateData))
        return [_spending(sum(len(of.data) for of in texts) + _OF_CALL), node]

    def visit_For(self, node: nodes.For) -> Any:  # noqa: N802
        number = _number(node)
        self.generic_visit(node)
        node.iter = _called("passes", node.iter, nodes.Const(number))
        return node

    def visit_Macro(self, node: Any) -> Any:  # noqa: N802
        number = _number(node)
        self.generic_visit(node)
        node.body.insert(0, _spending(number))
        return node

    visit_CallBlock = visit_Block = visit_Macro  # noqa: N815

    def visit_Concat(self, node: nodes.Concat) -> Any:  # noqa: N802
        self.generic_visit(node)
        node.nodes = [*map(_charged, node.nodes)]
        return node

    def visit_Compare(self, node: nodes.Compare) -> Any:  # noqa: N802
        self.generic_visit(node)
        node.expr = _charged(node.expr)
        for operand in node.ops:
            operand.expr = _charged(operand.expr)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> Any:  # noqa: N802
        self.generic_visit(node)
        return _called("made", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_List(self, node: Any) -> Any:  # noqa: N802
        self.generic_visit(node)
        is_stored: bool = getattr(node, "ctx", "load") != "load"
        is_plain = all(isinstance(of, nodes.Const) for of in node.iter_child_nodes())
        return node if is_stored or is_plain else _called("made", node)

    visit_Tuple = visit_Dict = visit_List  # noqa: N815


def _number(node: nodes.Node) -> int:
    """Return the number of nodes below this one."""
    return sum(1 for _ in node.find_all(nodes.Node))


def _called(name: str, *args: Any) -> nodes.Expr:
    line = args[0].lineno
    attribute = nodes.EnvironmentAttribute(name, lineno=line)
    return nodes.Call(attribute, [*args], [], None, None, lineno=line)


def _charged(node: nodes.Expr) -> nodes.Expr:
    return node if isinstance(node, nodes.Const) else _called("charged", node)


def _spending(units: int) -> nodes.Node:
    return nodes.ExprStmt(_called("spend", nodes.Const(units, lineno=1)), lineno=1)


class _Generation(Extension):
    """Shows what is within `generation`, which marks the replies for training."""

    tags = {"generation"}  # noqa: RUF012  (as jinja2 declares it)

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class ChatSandbox(ImmutableSandboxedEnvironment):
    """The environment of chat templates, with the names that transformers gives them.

    Templates are compiled and rendered within `budget_of`.
    """

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "**", "%"))

    def __init__(self, to_json: Callable[..., str]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, "jinja2.ext.loopcontrols"],
            finalize=self.charged,
        )
        self.filters["tojson"] = to_json
        self.filters = {name: _bounded_filter(name, of) for name, of in self.filters.items()}
        for name in _COMPARES:
            self.tests[name] = _bounded_filter("count", self.tests[name])
        self.globals["raise_exception"] = _refuse
        self.globals["strftime_now"] = _now
        del self.globals["lipsum"]

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        if len(source) > _MOST_CHARACTERS:
            raise SecurityError(f"it has more than {_MOST_CHARACTERS:,} characters")
        charge: Any = _Charge()
        template: nodes.Template = charge.visit(super()._parse(source, name, filename))
        return template

    def spend(self, units: int) -> None:
        _BUDGET.get().spend(units)

    def charged(self, value: Any) -> Any:
        _BUDGET.get().spend_on_all(value)
        return value

    def made(self, value: Any) -> Any:
        _BUDGET.get().spend_on(value)
        return value

    def passes(self, over: Iterable[Any], units: int) -> Iterable[Any]:
        """Spend the units of each pass of a loop."""
        if isinstance(over, Sized):
            self.spend(len(over) * units)
            return over
        return self._each(over, units)

    def _each(self, over: Iterable[Any], units: int) -> Iterator[Any]:
        for value in over:
            self.spend(units)
            yield value

    def call(self, context: Any, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        # Jinja wraps `str.format`.
        owner = getattr(getattr(called, "__wrapped__", called), "__self__", None)
        if owner is self:
            return called(*args)
        budget = _BUDGET.get()
        if isinstance(owner, (str, bytes, int, float, list, tuple, dict)):
            args = _as_lists(args)
            named = (value for name, value in kwargs.items() if not name.startswith("_"))
            given = (owner, *args, *named)
            for of in given:
                budget.spend_on(of)
            _require_result(getattr(called, "__name__", ""), given)
        result = super().call(context, called, *args, **kwargs)
        if not isinstance(result, Namespace):
            budget.spend_on(result)
        return result

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        budget = _BUDGET.get()
        budget.spend_on(left)
        budget.spend_on(right)
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length(), right.bit_length()
            most = bits[0] * abs(right) if operator == "**" else sum(bits)
            if most > _MOST_BITS:
                raise SecurityError("it makes a number of too many digits")
        elif operator in "*%":
            _require_result("format" if operator == "%" else "", (left, *_parts(right)))
        result = super().call_binop(context, operator, left, right)
        budget.spend_on(result)
        return result


def _parts(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _refuse(message: str) -> None:
    raise Refusal(message)


def _now(form: str) -> str:
    if len(form) > 1000 or _has_width(form):
        raise SecurityError("its form of a date is too long")
    return datetime.now().strftime(form)
