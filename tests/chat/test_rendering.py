"""Rust renders chat templates as transformers renders them with jinja2."""

from collections.abc import Iterator
from typing import Any

import jinja2
import pytest
from transformers.utils.chat_template_utils import _compile_jinja_template

from pyengine.chat.template import ChatTemplate
from pyengine.errors import InvalidRequestError
from tests import hub_templates
from tests.chat.test_content_tokens import TURNS, template_of
from tools.demo_model.template import CHAT_TEMPLATE

TEMPLATES = {
    "demo": CHAT_TEMPLATE,
    **{name: text for name, text in vars(hub_templates).items() if name.isupper()},
    **{name: template_of(name) for name in TURNS},
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The \"weather\" of <b>a city</b> & 'more', as in Köln",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Köln", "Paris"]},
                "days": {"type": "array", "items": {"type": "integer"}},
                "items": {"type": ["string", "null"], "default": None},
            },
            "required": ["city"],
        },
    },
}
NOTHING = {
    "type": "function",
    "function": {"name": "noop", "parameters": {"type": "object", "properties": {}}},
}
ARGUMENTS = {"city": "Köln", "days": [1, 2], "x": 1.0, "small": 1e-7, "ok": True, "n": None}


def _call(number: int, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": f"call{number:05d}", "type": "function", "function": function}


CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one word": [{"role": "user", "content": "Hello <b> & 'x' é 👋"}],
    "system": [
        {"role": "system", "content": "Be kind.\n"},
        {"role": "user", "content": " \tHi\x1c "},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "And?"},
    ],
    "call": [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [_call(1, "get_weather", ARGUMENTS)]},
        {"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": '{"t": 5}'},
        {"role": "assistant", "content": "5 degrees."},
        {"role": "user", "content": "Thanks."},
    ],
    "two calls": [
        {"role": "user", "content": "Two."},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "One,\nthen another.",
            "tool_calls": [
                _call(1, "get_weather", {"items": "x", "keys": {"a": ["b", {}]}}),
                _call(2, "noop", {}),
            ],
        },
        {"role": "tool", "tool_call_id": "call00001", "content": "a"},
        {"role": "tool", "tool_call_id": "call00002", "content": "b"},
    ],
    "reasoning": [
        {"role": "user", "content": "Think."},
        {"role": "assistant", "content": "Answer.", "reasoning_content": "Because\nof it."},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nOK."},
        {"role": "user", "content": "日本語"},
    ],
}
VARIABLES: tuple[dict[str, Any], ...] = ({}, {"enable_thinking": False, "reasoning_effort": "high"})


def _cases() -> Iterator[tuple[list[dict[str, Any]], Any, dict[str, Any]]]:
    for messages in CONVERSATIONS.values():
        for tools in (None, [WEATHER, NOTHING]):
            for variables in VARIABLES:
                yield messages, tools, variables


def _in_transformers(source: str, **variables: Any) -> str | None:
    """Returns the text of transformers; None where the template refuses or fails."""
    try:
        text: str = _compile_jinja_template(source).render(**variables)
    except (jinja2.TemplateError, TypeError, ValueError):
        return None
    return text


@pytest.mark.parametrize("name", list(TEMPLATES))
def test_template_renders_as_in_transformers(name: str) -> None:
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    template = ChatTemplate(TEMPLATES[name], tokens)
    equal = 0
    for messages, tools, more in _cases():
        variables = {"messages": messages, "tools": tools, "add_generation_prompt": True, **more}
        expected = _in_transformers(TEMPLATES[name], **tokens, **variables)
        if expected is None:
            with pytest.raises(InvalidRequestError):
                template.render(**variables)
        else:
            assert template.render(**variables) == expected
            equal += 1
    assert equal >= 4, "the template refuses nearly all conversations"


EXPRESSIONS = [
    "messages | map(attribute='content') | join(', ')",
    "messages | selectattr('role', 'equalto', 'user') | list | length",
    "[1] + [2] + messages | map(attribute='role') | list",
    "{'b': [1, 'ü', 1e-7, none], 'a': {}} | tojson",
    "{'b': [1, 'ü\\n\"'], 'a': {}} | tojson(ensure_ascii=true, indent=2, sort_keys=true)",
    "{'b': [1, 'ü'], 'a': []} | tojson(separators=(',', ':'))",
    "{'b': [1, {'x': true}]} | tojson(indent=4)",
    "'<b>' | safe + '<i>' + '&' | safe",
    "'<' + '>' | safe + \"'\"",
    "('a' | safe) ~ '<'",
    "none is iterable, 'a' is iterable, {} is sequence, 'a' is sequence, x is iterable",
    "1e-7, 1e16, 0.1, 100.0, [0.1], true, none, {'a': 'b'}",
    "' a  b\\x1c'.split(), 'a,b,,c'.split(',', 2), 'a,b,c'.rsplit(',', 1), 'a b '.split(' ')",
    "'a\\nb\\r\\nc\\x0bd'.splitlines(), 'a=b=c'.partition('='), 'a=b=c'.rpartition('=')",
    "' x\\x1d'.strip() ~ '|', 'xxaxx'.strip('x'), 'xxa'.lstrip('x'), 'axx'.rstrip('xa')",
    "'hello wORLD'.title(), 'hello wORLD'.capitalize(), 'aB'.swapcase(), 'abc'.index('c')",
    "'abc'.startswith(('x', 'a')), 'abc'.endswith('bc'), 'abc'.removeprefix('a')",
    "'5'.zfill(3), '-5'.zfill(4), 'a'.ljust(3) ~ '|', 'a'.rjust(3, '.'), 'ab'.center(5, '*')",
    "'{} is {}'.format('a', 5), 'a-b'.replace('-', '+'), 'a-b-c'.replace('-', '', 1)",
    "{'items': 1, 'get': 2}.items() | list, {'items': 1}.get('items'), {'a': 1}.get('b')",
    "[3, 1, 2] | sort, [3, 1, 2] | batch(2, 0) | list, [3, 1, 2] | slice(2) | list",
    "'abcdef'[::-1], [1, 2, 3][-2:], messages[-1].role, messages[0]['content'][:2]",
    "7 // 2, -7 // 2, 7 % 3, 2 ** 8, 7 / 2, 1 < 2 < 3, 'a' in 'abc', 'a' not in ['b']",
    "namespace(a=1).a, dict(a=1), range(3) | list, joiner('a')()",
    "undefined_name, messages[0].nothing, messages[9] is defined",
    "messages[0].nothing.more is defined",
    "'a' ~ 1 ~ none ~ true ~ 1.5, 'ab' | upper, 'a b' | title, ' a ' | trim ~ '|', 'x' | center(3)",
    "{'b': 1, 'a': 2} | dictsort, {'b': 1} | items | list, 3.14159 | round(2), '12' | int + 1",
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expression_means_what_it_means_in_jinja2(expression: str) -> None:
    source = f"{{% for value in [{expression}] %}}{{{{ value }}}}|{{% endfor %}}"
    messages = CONVERSATIONS["system"]
    expected = _in_transformers(source, messages=messages)
    if expected is None:
        with pytest.raises(InvalidRequestError):
            ChatTemplate(source).render(messages)
    else:
        assert ChatTemplate(source).render(messages) == expected


def test_integer_of_any_size_is_written_as_it_is() -> None:
    template = ChatTemplate("{{ n }} {{ n | tojson }} {{ m | tojson }}")
    assert template.render([], n=10**50, m=-(10**20)) == f"{10**50} {10**50} {-(10**20)}"


@pytest.mark.parametrize("variable", [object(), "\ud800", {1, 2}])
def test_variable_that_templates_cannot_take_is_refused(variable: object) -> None:
    with pytest.raises(InvalidRequestError, match="cannot render"):
        ChatTemplate("{{ x }}").render([], x=variable)


def test_line_of_a_failure_is_named() -> None:
    with pytest.raises(InvalidRequestError, match="in line 2"):
        ChatTemplate("{{ messages[0].content }}\n{{ messages[0].content + 1 }}").render(
            CONVERSATIONS["one word"]
        )
