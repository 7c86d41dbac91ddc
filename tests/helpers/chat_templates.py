"""Chat templates of ten families, written for tests, and the real ones of llama.cpp's sources."""

from pathlib import Path

_ROOT = Path(__file__).parents[2] / "target/llama.cpp"
REAL = {
    path.stem: path for path in sorted(_ROOT.glob("*/vendor/llama.cpp/models/templates/*.jinja"))
}
"""Templates of models, where `make test-llama-server` has unpacked llama.cpp's sources."""

_HEAD = "{% for m in messages %}"
_CHATML = (
    "{% if tools %}<|im_start|>system\n<tools>{% for t in tools %}{{ t | tojson }}\n{% endfor %}"
    "</tools><|im_end|>\n{% endif %}" + _HEAD + "<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n{% endif %}"
    "{{ m.content }}CALLS<|im_end|>\n{% endfor %}"
)


def _calls(body: str) -> str:
    return _CHATML.replace("CALLS", "{% for c in m.tool_calls %}" + body + "{% endfor %}")


_XML = (
    "<function={{ c.function.name }}>{% for name, value in c.function.arguments.items() %}"
    "<parameter={{ name }}>\n{{ value if value is string else value | tojson }}\n</parameter>"
    "{% endfor %}</function>"
)
WRITTEN = {
    "chatml": _calls(
        '<tool_call>\n{"name": "{{ c.function.name }}", "arguments": '
        "{{ c.function.arguments | tojson }}}\n</tool_call>"
    ),
    "either": _calls(
        '{"name": "{{ c.function.name }}", "arguments": {% if c.function.arguments is string %}'
        "{{ c.function.arguments }}{% else %}{{ c.function.arguments | tojson }}{% endif %}}"
    ),
    "xml": _calls(_XML),
    "json-only": _calls(
        "<call>{{ c['function']['name'] + '\n' + c['function']['arguments'] }}</call>"
    ),
    "printed": _calls("<call>{{ c.function.name }}{{ c.function.arguments }}</call>"),
    "whole": _calls("[TOOL_CALLS]{{ c.function | tojson }}[{{ c.id }}]"),
    "headers": "{{ bos_token }}{% if tools is not none %}{{ tools | tojson(indent=4) }}{% endif %}"
    + _HEAD
    + "<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n{% if m.tool_calls %}"
    '{% for c in m.tool_calls %}{"name": "{{ c.function.name }}", "parameters": '
    "{{ c.function.arguments | tojson }}}{% endfor %}{% else %}{{ m['content'] | trim }}{% endif %}"
    "<|eot_id|>{% endfor %}",
    "channels": _HEAD
    + "<|start|>{{ m.role }}{% if m.thinking %}<|channel|>analysis<|message|>{{ m.thinking }}"
    "<|end|>{% endif %}{% for c in m.tool_calls %} to=functions.{{ c.function.name }}<|message|>"
    "{{ c.function.arguments | tojson }}<|call|>{% else %}<|message|>{{ m.content }}<|end|>"
    "{% endfor %}{% endfor %}",
    "named": _HEAD + "<turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{% if m.role == 'tool' %}{{ m.tool_call_id }}: {% endif %}{{ m.content }}"
    "{% for c in m.tool_calls %}```tool_code\n{{ c.function.name }}("
    "{% for name, value in c.function.arguments | items %}{{ name }}={{ value | tojson }},"
    "{% endfor %})\n```{% endfor %}</turn>\n{% endfor %}",
    "strict": "{% if messages[0].role == 'assistant' %}{{ raise_exception('no user') }}{% endif %}"
    + _calls("{{ c | tojson }}"),
}
"""One for each way in which families write calls and reasoning."""

WITHOUT_CALLS = _HEAD + "<|{{ m.role }}|>{{ m.content }}{% endfor %}"
