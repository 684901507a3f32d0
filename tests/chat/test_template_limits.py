"""Templates that would run for ever or make gigabytes are ended; ordinary ones notice nothing."""

import asyncio
from typing import Any

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine.chat.handler import ChatHandler
from pyengine.chat.template import ChatTemplate, TemplateLimitError, TemplateTimeoutError
from pyengine.errors import InvalidRequestError, ModelLoadError
from tests.http.fake_engine import small_tokenizer

MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "x"}]
LONG = "{% set s = 'a' * 1000000 %}"


def _forty(start: str, step: str, end: str = "{{ s }}") -> str:
    return f"{{% set s = {start} %}}{step * 40}{end}"


ENDLESS = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "recursion": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
    "{{ f(30) }}",
    "loops in filters": "{% set r = range(99999) | list %}{{ r | select('in', r) | list }}",
}
TOO_MUCH = {
    "repetition": "{{ 'a' * 10**10 }}",
    "repetition of lists": "{{ [1] * 10**10 }}",
    "doubling": _forty("'aaaa'", "{% set s = s + s %}"),
    "doubling by ~": _forty("'aaaa'", "{% set s = s ~ s %}"),
    "doubling of lists": _forty("['aaaa']", "{% set s = s + s %}"),
    "doubling of blocks": _forty("'aaaa'", "{% set s %}{{ s }}{{ s }}{% endset %}"),
    "sharing in lists": _forty("['a']", "{% set s = [s, s] %}"),
    "sharing in tuples": _forty("['a']", "{% set s = (s, s) %}", "{{ s == s + (1,) }}"),
    "sharing in dicts": _forty("{'a': 1}", "{% set s = dict(a=s, b=s) %}"),
    "sharing in views": _forty("{'a': 1}", "{% set s = {'a': s.items(), 'b': s.items()} %}"),
    "sharing by filters": _forty("[1]", "{% set s = [0, 0] | map('default', s, true) | list %}"),
    "sharing in batches": _forty("[1]", "{% set s = [0] | batch(3, s) | list %}"),
    "sharing that is compared": _forty("['a']", "{% set s = [s, s] %}", "{{ [s] == [[s]] }}"),
    "sharing by macros": "{% macro f(s, n) %}{% if n %}{{ f([s, s], n - 1) }}{% endif %}"
    "{% endmacro %}{{ f([1], 40) }}",
    "sharing in loops": "{% set ns = namespace(s=[1]) %}{% for i in range(40) %}"
    "{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
    "a list of itself": "{% set ns = namespace(s=[1]) %}{% for i in range(40) %}"
    "{% set ns.s = [ns.s, ns.s] %}{% endfor %}",
    "ljust": "{{ 'a'.ljust(10**10) }}",
    "center": "{{ 'a' | center(10**10) }}",
    "indent": "{{ 'a\nb' | indent(10**10) }}",
    "batch": "{{ [1] | batch(10**10, 1) | list }}",
    "slice": "{{ [1] | slice(10**10, 1) | list }}",
    "replace": LONG + "{{ s.replace('a', s) }}",
    "replace, as a filter": LONG + "{{ s | replace('', s) }}",
    "join": LONG + "{{ s.join(s.split('')) if false else s.join(s | list) }}",
    "join, as a filter": LONG + "{{ s | list | join(s) }}",
    "output": LONG + "{% for i in range(1000) %}{{ s }}{% endfor %}",
}
REFUSED = {
    "%": "{{ '%10000000000d' % 1 }}",
    "% with *": "{{ '%*d' % (10**10, 1) }}",
    "format": "{{ '{:>10000000000}'.format(1) }}",
    "nested format": "{{ '{:{}}'.format(1, 10**10) }}",
    "filter format": "{{ '%10000000000d' | format(1) }}",
    "strftime": "{{ strftime_now('%10000000000d') }}",
    "deep recursion": "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "unknown methods": "{{ (1).to_bytes(10**10) }}",
    "unknown methods of text": "{{ 'a'.translate({97: 'b'}) }}",
    "methods of types": "{{ dict.fromkeys(range(9)) }}",
    "indented JSON": "{{ [1] | tojson(indent=10**10) }}",
}


LIMITS = "makes more than|more work than|too large|indents by at most"


@pytest.mark.parametrize("name", list(ENDLESS))
def test_endless_templates_are_ended(name: str) -> None:
    template = ChatTemplate(ENDLESS[name], seconds=0.05)
    with pytest.raises(TemplateTimeoutError, match=r"more work than 0\.05 seconds allow"):
        template.render(MESSAGES)


@pytest.mark.parametrize("name", list(TOO_MUCH))
def test_templates_that_make_too_much(name: str) -> None:
    template = ChatTemplate(TOO_MUCH[name], seconds=0.5)
    with pytest.raises(InvalidRequestError, match=LIMITS) as caught:
        template.render(MESSAGES)
    assert caught.value.param == "messages"


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_templates_cannot_do(name: str) -> None:
    with pytest.raises(InvalidRequestError):
        ChatTemplate(REFUSED[name], seconds=60).render(MESSAGES)


def test_texts_that_add_up_are_ended() -> None:
    kept = "".join(f"{{% set a{i} = s + 'x' %}}" for i in range(200))
    template = ChatTemplate("{% set s = 'é' * 1000000 %}" + kept, seconds=0.5)
    with pytest.raises(TemplateTimeoutError):
        template.render(MESSAGES)


def test_an_output_that_is_too_long_is_refused() -> None:
    template = ChatTemplate(LONG + "{% for i in range(9) %}{{ s }}{% endfor %}")
    with pytest.raises(TemplateLimitError, match="makes more than 8388608 characters") as caught:
        template.render(MESSAGES)
    assert not isinstance(caught.value, TemplateTimeoutError)
    assert caught.value.code == "template_limit_exceeded"


@pytest.mark.parametrize(
    "source",
    [
        "{% set ns = namespace(s=[]) %}{% for i in range(9999) %}"
        "{% set ns.s = [ns.s] %}{% endfor %}",
        "{% set ns = namespace() %}{% set ns.a = [ns] %}",
        "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}",
        "{% set a = namespace() %}{% set b = namespace(a=a) %}",
        "{% set ns = namespace(s='x') %}{% for i in range(9999) %}"
        "{% set ns.s = {'a': ns.s} %}{% endfor %}",
        "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    ],
)
def test_deep_values_are_refused_before_they_take_the_stack(source: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"too deep|hold a namespace|recursion"):
        ChatTemplate(source).render(MESSAGES)


def test_limits_hold_while_a_template_is_compiled() -> None:
    for source in ("{{ 'a' * 10**10 }}", "{{ ['a'] * 10**9 }}", "{{ 'a' | center(10**10) }}"):
        ChatTemplate(source)
    with pytest.raises(ModelLoadError, match="1048577 characters; at most 1048576"):
        ChatTemplate("x" * ((1 << 20) + 1))
    with pytest.raises(ModelLoadError, match="recursion"):
        ChatTemplate("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}")


def test_the_limits_are_settings() -> None:
    template = ChatTemplate("{{ messages[0].content * 3 }}", max_characters=10)
    assert template.render([{"role": "user", "content": "abc"}]) == "abc" * 3
    with pytest.raises(TemplateLimitError, match="more than 10 characters"):
        template.render([{"role": "user", "content": "abcd"}])


async def test_threads_have_limits_of_their_own() -> None:
    endless = ChatTemplate(ENDLESS["loops"], seconds=0.05)
    quick = ChatTemplate("{% for m in messages %}{{ m.content + '!' }}{% endfor %}", seconds=60)
    renders = [asyncio.to_thread(template.render, MESSAGES) for template in (endless, quick)]
    late, made = await asyncio.gather(*renders, return_exceptions=True)
    assert isinstance(late, TemplateTimeoutError)
    assert made == "x!"


@pytest.mark.parametrize(
    "expression",
    [
        "messages | map(attribute='content') | join(', ')",
        "messages | selectattr('role', 'equalto', 'user') | list | length",
        "['b', 'a', 'b'] | unique | sort | join",
        "[3, 1, 2] | batch(2, 0) | list",
        "[3, 1, 2] | slice(2) | list",
        "[1, 2] + [3]",
        "{'a': [1, 'ü']} | tojson(indent=2)",
        "{'a': 1} | dictsort",
        "'{} {x:>5}'.format(1, x=2)",
        "'a-b'.replace('-', '+') ~ 'x' ~ 3",
        "'a b'.split(' ')[::-1] | first | upper",
        "(2 ** 8) * 3 // 7 % 4",
        "[1, 2] | sum",
        "3.14159 | round(2)",
        "'a\nb' | indent(2, true)",
        "namespace(a=1).a",
        "range(3) | list | reverse | list",
        "messages[0].content.strip().title()",
        "'ab' is in ['ab'] and 'x' not in messages[0]",
        "joiner('a')()",
    ],
)
def test_what_ordinary_templates_do_is_unchanged(expression: str) -> None:
    plain = jinja2.Environment()
    template = ChatTemplate("{{ " + expression + " }}")
    if "tojson" in expression:  # jinja's own escapes for HTML
        plain.filters["tojson"] = lambda value, indent: '{\n  "a": [\n    1,\n    "ü"\n  ]\n}'
    expected = plain.from_string("{{ " + expression + " }}").render(messages=MESSAGES)
    assert template.render(MESSAGES) == expected


LOOP = (
    "{% for m in messages recursive %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}"
    "{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{{ loop.cycle('a', 'b') }}"
    "{{ loop(m.sub) if m.sub }}{% else %}none{% endfor %}"
    "{% for k, v in {'a': 1}.items() if v %}{{ k }}{% endfor %}{% for x in nothing %}{% endfor %}"
)


@given(st.recursive(st.just([]), lambda sub: st.lists(st.builds(lambda s: {"sub": s}, sub))))
@settings(max_examples=30)
def test_loops_are_unchanged(messages: list[Any]) -> None:
    expected = jinja2.Environment().from_string(LOOP).render(messages=messages)
    assert ChatTemplate(LOOP).render(messages) == expected


@pytest.mark.parametrize("source", [ENDLESS["loops"], "{{ 'a' * 10**10 }}"])
def test_such_a_template_is_refused_at_the_start(source: str) -> None:
    handler = ChatHandler("m", small_tokenizer(), ChatTemplate(source, seconds=0.05))
    with pytest.raises(ModelLoadError, match="for a message of one word"):
        handler.check_template()
    ChatHandler("m", small_tokenizer(), ChatTemplate("{{ messages[1] + 1 }}")).check_template()
