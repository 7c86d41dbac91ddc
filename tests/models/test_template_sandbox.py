"""Chat templates of anybody write what a plain sandbox writes, within bounds of time and memory."""

import json

import pytest
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from chat_templates import REAL, WRITTEN
from specds.models import template_sandbox
from specds.models.chat_template import TemplateError, render

ASKED = [{"role": "user", "content": "What is one and one?"}]
CALL = {"id": "call_12345", "type": "function", "function": {"name": "f", "arguments": {"a": [1]}}}
TALK = [
    {"role": "system", "content": "Short."},
    *ASKED,
    {"role": "assistant", "content": "<think>\nadd\n</think>\n\nTwo", "tool_calls": [CALL]},
    {"role": "tool", "content": "2", "tool_call_id": "call_12345", "name": "f"},
    {"role": "assistant", "content": "Two", "reasoning_content": "said so"},
    {"role": "user", "content": [{"type": "text", "text": "And two?"}]},
]
PARAMETERS = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}}
TOOLS = [
    {"type": "function", "function": {"name": "f", "description": "", "parameters": PARAMETERS}}
]
GIVEN = {"bos_token": "<s>", "eos_token": "</s>", "documents": None}

_PLAIN = "{% set ns = namespace(x='a', y=['a']) %}"
_MANY = "{% for i in range(99999) %}"
_LONG = "{% set x = 'a' * 100000 %}"


def _repeated(step):
    return _PLAIN + step * 60


HOSTILE = {
    "passes": "{% for i in range(10**9) %}a{% endfor %}",
    "passes of passes": _MANY + _MANY + "{% endfor %}{% endfor %}",
    "passes without a body": _MANY + "{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
    "long bodies": _MANY + "{% if a %}{% endif %}" * 3000 + "{% endfor %}",
    "text": _MANY + "x" * 60_000 + "{% endfor %}",
    "text of a block": "{% set x %}" + _MANY + "x" * 60_000 + "{% endfor %}{% endset %}",
    "text of macros": "{% macro f() %}" + "x" * 60_000 + "{% endmacro %}"
    + _MANY + "{{ f() }}{% endfor %}",
    "product": "{{ 'a' * 10**9 }}",
    "product of a list": "{{ 1000000000 * [0] }}",
    "product of bytes": "{{ 'a'.encode() * 1000000000 }}",
    "power": "{{ 2**100000000 }}",
    "powers": _repeated("{% set ns.x = 3 if ns.x == 'a' else ns.x * ns.x %}"),
    "rounding": "{{ 5|round(-10000000) }}",
    "number as bytes": "{{ (5).to_bytes(1000000000, 'big') }}",
    "percent": "{{ '%1000000000d' % 1 }}",
    "percent with a star": "{{ '%*d' % (1000000000, 1) }}",
    "filter format": "{{ '%.1000000000f'|format(1.5) }}",
    "method format": "{{ '{:1000000000}'.format(1) }}",
    "format of a format": "{{ '{:{w}}'.format(1, w=1000000000) }}",
    "format of a mapping": "{{ '{a:1000000000}'.format_map({'a': 1}) }}",
    "dates": "{{ strftime_now('%1000000000d') }}",
    "center": "{{ 'a'|center(1000000000) }}",
    "center by name": "{{ ['a']|map('center', 1000000000)|list }}",
    "center in a block": "{% filter center(1000000000) %}a{% endfilter %}",
    "justified": "{{ 'a'.ljust(1000000000) }}",
    "tabs": "{{ ('\t' * 10000).expandtabs(1000000) }}",
    "replaced": _LONG + "{{ x|replace('a', x) }}",
    "replaced by a method": _LONG + "{{ x.replace('', x) }}",
    "translated": _LONG + "{{ x.translate({97: x}) }}",
    "joined": _LONG + "{{ range(99999)|join(x) }}",
    "joined by a method": _LONG + "{{ x.join(range(99999)|map('string')) }}",
    "indented": "{{ ('\n' * 1000000)|indent(1000000) }}",
    "JSON": "{{ ([1] * 100000)|tojson(indent=1000000) }}",
    "batches": "{{ [1]|batch(100000000, 0)|list }}",
    "doubled": _repeated("{% set ns.x = ns.x ~ ns.x %}"),
    "doubled lists": _repeated("{% set ns.y = ns.y + ns.y %}"),
    "lists of lists": _repeated("{% set ns.y = [ns.y, ns.y] %}") + "{{ ns.y }}",
    "mappings of mappings": _repeated("{% set ns.y = dict(a=ns.y, b=ns.y) %}") + "{{ ns.y }}",
    "namespaces": _repeated("{% set n = namespace(a=ns, b=[ns]) %}") + "{{ n }}",
    "scans": _LONG + _MANY + "{{ 'b' in x }}{{ x is in x }}{{ x.count('b') }}{% endfor %}",
    "slices": _LONG + _MANY + "{% set y = x[1:] %}{% endfor %}",
    "comments of HTML": "{{ ('<!-- ' * 200000)|striptags }}",
    "sums of lists": "{{ ([[1]] * 99999)|sum(start=[]) }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "wide recursion": "{% macro f(n) %}{% if n %}{{ f(n - 1) ~ f(n - 1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
    "recursive loop": "{% for i in [1, 1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
    "blocks": "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
    "callers": "{% macro f() %}{{ caller() }}{{ caller() }}{% endmacro %}"
    + "{% call f() %}" * 18 + "x" + "{% endcall %}" * 18,
    "nesting": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "nested loops": "{% for a in [1] %}" * 60 + "{% endfor %}" * 60,
    "size": "{{ a }}" * 20_000,
}  # fmt: skip
"""Each takes hours or gigabytes in a plain sandbox, or ends the process."""
REFUSED = {
    "classes": "{{ ''.__class__.__mro__ }}",
    "changes": "{{ messages.append(1) }}",
    "files": "{% include '/etc/passwd' %}",
    "missing": "{{ a.b }}",
    "zero": "{{ 1 / 0 }}",
    "digits": "{{ " + "9" * 5000 + " }}",
    "wrong call": "{{ 1|batch }}",
    "syntax": "{% for %}",
}  # fmt: skip


def _oracle(template, messages, **given):
    """Render by a plain sandbox, as transformers does."""

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012  (as jinja2 declares it)

        def parse(self, parser):
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message):
        raise ValueError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, ensure_ascii=False, **options: json.dumps(
        value, ensure_ascii=ensure_ascii, **options
    )
    environment.globals |= {"raise_exception": refuse, "strftime_now": lambda _: "today"}
    return environment.from_string(template).render(messages=messages, **given)


def _outcome(function, *args, **given):
    try:
        return function(*args, **given)
    except Exception:
        return None


@pytest.mark.parametrize("name", [*WRITTEN, *REAL])
def test_templates_of_models_write_what_a_plain_sandbox_writes(name):
    template = WRITTEN[name] if name in WRITTEN else REAL[name].read_text("utf-8")
    template = template.replace("strftime_now(", "'today' or (")
    for messages in (ASKED, TALK, TALK[:2] + TALK[4:5] + ASKED):
        for more in (
            {},
            {"tools": TOOLS, "add_generation_prompt": True},
            {"enable_thinking": False},
        ):
            given = GIVEN | {"tools": None} | more
            plain = [of | {"thinking": of.get("reasoning_content")} for of in messages]
            plain = [{key: value for key, value in of.items() if value} for of in plain]
            assert _outcome(render, template, messages, **given) == _outcome(
                _oracle, template, plain, **given
            )


def test_long_conversations_are_within_the_bounds():
    turn = [{"role": "user", "content": "word " * 60}, {"role": "assistant", "content": "a " * 90}]
    for template in WRITTEN.values():
        assert len(render(template, turn * 300 + ASKED, **GIVEN, tools=TOOLS)) > 100_000


BOUNDS = (
    "too much time or memory|a large width|too many digits|form of a date|of a namespace|"
    "Range too big|recursion|nested blocks|characters"
)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_are_stopped(name, monkeypatch):
    monkeypatch.setattr(template_sandbox, "_UNITS", 800_000)  # a tenth
    with pytest.raises(TemplateError, match=BOUNDS):
        render(HOSTILE[name], ASKED)


@pytest.mark.parametrize("name", REFUSED)
def test_failing_templates_are_refused_with_one_error(name):
    with pytest.raises(TemplateError, match="the chat template fails: "):
        render(REFUSED[name], ASKED)


def test_bounds_are_of_one_call():
    template = "{% for i in range(50000) %}{{ i }}{% endfor %}"
    for _ in range(3):
        assert len(render(template, ASKED)) > 200_000
