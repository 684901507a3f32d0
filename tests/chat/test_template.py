"""Chat templates: equal to transformers', safe, and clear about what they cannot do."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from pyengine.chat.template import ChatTemplate
from pyengine.errors import InvalidRequestError, ModelLoadError

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": 'Be <brief> & "kind".'},
    {"role": "user", "content": "  Grüße 👋 "},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "What is 2+2?"},
]
TOOLS = [
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "x": "ü<"}}}
]
TEMPLATES = {
    "chatml": """\
{%- if tools %}
    {{- '<tools>' }}
    {%- for tool in tools %}
        {{- "\\n" + (tool | tojson) }}
    {%- endfor %}
    {{- '</tools>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""",
    "blocks and loops": """\
{{ bos_token }}{% for message in messages %}
    {% if message['role'] == 'system' %}
        {% continue %}
    {% endif %}
    {% if loop.index0 > 2 %}
        {% break %}
    {% endif %}
[{{ message['role'] | upper }}] {{ message['content'] | trim }}{{ eos_token }}
{% endfor %}
""",
    "namespace and macro": """\
{% macro show(m) %}<{{ m.role }}>{{ m.content }}{% endmacro %}
{% set ns = namespace(count=0) %}
{% for m in messages %}{% set ns.count = ns.count + 1 %}{{ show(m) }}{% endfor %}
{{ ns.count }} {{ {'a': [1, 'ü']} | tojson(indent=2) }}
""",
    "generation": """\
{% for m in messages %}
{% if m.role == 'assistant' %}{% set x = 1 %}
{% generation %}{% set x = 2 %}{{ m.content }}{% endgeneration %}{{ x }}
{% else %}{{ m.content }}
{% endif %}
{% endfor %}
""",
    "variables": "{{ messages | length }}{{ flavour | default('none') }}{{ pad_token is defined }}"
    "{{ strftime_now('%Y') }}{{ documents }}{{ tools is none }}",
}


@pytest.mark.parametrize("name", list(TEMPLATES))
@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_equal_to_transformers(name: str, prompt: bool, tools: Any, transformers_like: Any) -> None:
    source = TEMPLATES[name]
    expected = transformers_like.apply_chat_template(
        MESSAGES,
        tools=tools,
        chat_template=source,
        add_generation_prompt=prompt,
        tokenize=False,
        flavour="lime",
    )
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    made = template.render(
        MESSAGES, tools, add_generation_prompt=prompt, flavour="lime", documents=None
    )
    assert made == expected


@pytest.fixture(scope="module")
def transformers_like() -> Any:
    from tokenizers import Tokenizer, models

    inner = Tokenizer(models.BPE())
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")


def test_a_template_that_refuses() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InvalidRequestError, match="roles must alternate") as caught:
        template.render(MESSAGES)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[9].content.x }}",
        "{{ messages + 1 }}",
        "{{ messages[0].content | tojson(separators=5) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{% for i in range(100000000) %}{% endfor %}",
    ],
)
def test_templates_that_fail_or_reach_out(source: str) -> None:
    with pytest.raises(InvalidRequestError):
        ChatTemplate(source).render([{"role": "user", "content": "x"}])


def test_a_malformed_template() -> None:
    with pytest.raises(ModelLoadError, match=r"line 1.*include"):
        ChatTemplate("{% include 'file' %}")
    with pytest.raises(ModelLoadError, match="line 2"):
        ChatTemplate("\n{% for %}")


@pytest.mark.parametrize(
    ("source", "keys"),
    [
        ("{% for m in messages %}{{ m.role }}{{ m['content'] }}{% endfor %}", {"role", "content"}),
        ("{% set rest = messages[1:] %}{% for m in rest | reverse %}{{ m.a }}{% endfor %}", {"a"}),
        ("{{ messages[0]['a'] }}{{ messages[-1].b }}", {"a", "b"}),
        ("{% for m in messages if 'a' in m and m.get('b') %}{% endfor %}", {"a", "b", "get"}),
        ("{% macro f(x, y) %}{{ x.a }}{{ y.b }}{% endmacro %}{{ f(messages[0], tools) }}", {"a"}),
        (
            "{% for m in messages %}{% for c in m['tool_calls'] %}{{ c.name }}{% endfor %}"
            "{% endfor %}",
            {"tool_calls"},
        ),
        ("{% for t in tools %}{{ t.name }}{% endfor %}", set()),
    ],
)
def test_keys_of_a_message_that_a_template_reads_are_found(source: str, keys: set[str]) -> None:
    assert ChatTemplate(source).message_keys == keys


def _folder(path: Path, **files: Any) -> Path:
    for name, content in files.items():
        stem, _, kind = name.rpartition("_")
        text = content if isinstance(content, str) else json.dumps(content)
        (path / f"{stem}.{kind}").write_text(text)
    return path


def test_template_is_found_in_each_place(tmp_path: Path) -> None:
    assert ChatTemplate.from_folder(tmp_path) is None
    _folder(tmp_path, chat_template_json={"chat_template": "third"})
    found = ChatTemplate.from_folder(tmp_path)
    assert found is not None
    assert found.render([]) == "third"
    _folder(
        tmp_path,
        tokenizer_config_json={
            "chat_template": "{{ bos_token }}{{ eos_token }}",
            "bos_token": "<s>",
            "eos_token": {"content": "</s>"},
            "pad_token": None,
        },
    )
    found = ChatTemplate.from_folder(tmp_path)
    assert found is not None
    assert found.render([]) == "<s></s>"
    _folder(tmp_path, chat_template_jinja="first")
    found = ChatTemplate.from_folder(tmp_path)
    assert found is not None
    assert found.render([]) == "first"


def test_several_templates_by_name(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    _folder(tmp_path, tokenizer_config_json={"chat_template": named})
    found = ChatTemplate.from_folder(tmp_path)
    assert found is not None
    assert found.render([]) == "d"
    assert found.render([], TOOLS) == "t"
    _folder(tmp_path, tokenizer_config_json={"chat_template": named[1:]})
    with pytest.raises(ModelLoadError, match="no default"):
        ChatTemplate.from_folder(tmp_path)


def test_templates_beside_the_default_one_and_tokens_of_the_map(tmp_path: Path) -> None:
    more = tmp_path / "additional_chat_templates"
    more.mkdir()
    (more / "tool_use.jinja").write_text("{{ eos_token }}t")
    with pytest.raises(ModelLoadError, match=r"\['tool_use'\] but no default"):
        ChatTemplate.from_folder(tmp_path)
    _folder(
        tmp_path,
        chat_template_jinja="{{ bos_token }}d",
        special_tokens_map_json={"bos_token": {"content": "<s>"}, "eos_token": "<map>"},
        tokenizer_config_json={"eos_token": "</s>"},
    )
    found = ChatTemplate.from_folder(tmp_path)
    assert found is not None
    assert found.render([]) == "<s>d"
    assert found.render([], TOOLS) == "</s>t"
    _folder(tmp_path, tokenizer_config_json={"chat_template": ["{{ bos_token }}"]})
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(ModelLoadError, match="a list of objects with 'name'"):
        ChatTemplate.from_folder(tmp_path)


def test_malformed_files(tmp_path: Path) -> None:
    _folder(tmp_path, tokenizer_config_json="{")
    with pytest.raises(ModelLoadError, match="tokenizer_config"):
        ChatTemplate.from_folder(tmp_path)
    _folder(tmp_path, tokenizer_config_json="[]")
    with pytest.raises(ModelLoadError, match="object"):
        ChatTemplate.from_folder(tmp_path)
