"""Contents of messages come to templates as what these read: texts, parts, or either."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from pyengine.chat.handler import ChatHandler
from pyengine.chat.messages import ContentPart, Message, template_messages
from pyengine.chat.options import ChatOptions
from pyengine.chat.template import ChatTemplate
from pyengine.tokenizer import Tokenizer as OurTokenizer

TURN = "{% for m in messages %}[{{ m.role }}]BODY[/]{% endfor %}"
TEXT = TURN.replace("BODY", "{{ m.content | trim }}")
PARTS = TURN.replace("BODY", "{% for part in m.content %}{{ part.text }}{% endfor %}")
# As LLaVA's and SmolVLM's.
SELECTED = TURN.replace(
    "BODY",
    "{% for part in m['content'] | selectattr('type', 'equalto', 'text') %}{{ part['text'] }}"
    "{% endfor %}",
)
EITHER = TURN.replace(
    "BODY",
    "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% endif %}",
)
# As Gemma 3's system prompt.
FIRST = TURN.replace(
    "BODY",
    "{% if m.content is string %}{{ m.content }}{% else %}{{ m.content[0].text }}{% endif %}",
)
DUMPED = TURN.replace("BODY", "{{ m.content if m.content is string else m.content | tojson }}")
# Users' contents may be parts, others' are not.
OF_USERS = TURN.replace(
    "BODY",
    "{% if m.role == 'user' and m.content is not string %}{% for part in m.content %}"
    "{{ part.text }}{% endfor %}{% else %}{{ m.content }}{% endif %}",
)


@pytest.fixture(scope="module")
def transformers_like() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))


def parts(*texts: str) -> list[ContentPart]:
    return [ContentPart("text", text) for text in texts]


def rendered(source: str, *messages: Message) -> str:
    template = ChatTemplate(source)
    return template.render(template_messages(messages, template)[0])


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (TEXT, "[user]one\ntwo[/]"),
        (PARTS, "[user]onetwo[/]"),
        (SELECTED, "[user]onetwo[/]"),
        (EITHER, "[user]onetwo[/]"),
        (FIRST, "[user]one\ntwo[/]"),
        (DUMPED, "[user]one\ntwo[/]"),
        (OF_USERS, "[user]onetwo[/]"),
    ],
)
def test_parts_stay_parts_where_a_template_reads_several(source: str, expected: str) -> None:
    assert rendered(source, Message("user", parts("one", "two"))) == expected
    assert rendered(source, Message("user", "three")) == "[user]three[/]"


@pytest.mark.parametrize("role", ["system", "assistant", "tool", "user"])
def test_each_role_is_asked_apart(role: str) -> None:
    made = ChatTemplate(OF_USERS).content_forms.content(role, ["one", "two"])
    both = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert made == (both if role == "user" else "one\ntwo")


@pytest.mark.parametrize("source", [PARTS, SELECTED, EITHER])
def test_parts_are_joined_as_transformers_joins_them(
    source: str, transformers_like: PreTrainedTokenizerFast
) -> None:
    conversation: list[dict[str, Any]] = [
        {"role": role, "content": [{"type": "text", "text": text} for text in texts]}
        for role, texts in (
            ("system", ["Be ", "kind."]),
            ("user", ["a", " b\n", ""]),
            ("assistant", ["c"]),
            ("user", ["d", "e"]),
        )
    ]
    expected = transformers_like.apply_chat_template(
        conversation, chat_template=source, tokenize=False
    )
    messages = [
        Message(turn["role"], parts(*(part["text"] for part in turn["content"])))
        for turn in conversation
    ]
    assert rendered(source, *messages) == expected


@pytest.mark.parametrize("source", [TEXT, PARTS, SELECTED, EITHER])
def test_last_message_is_continued_in_any_form(source: str, demo_model: Path) -> None:
    handler = ChatHandler("m", OurTokenizer.from_folder(demo_model), ChatTemplate(source))
    options = ChatOptions(continue_final_message=True, add_generation_prompt=False)
    for content in ("I say <", parts("I say", " <")):
        messages = [Message("user", "hi"), Message("assistant", content)]
        prompt, _ = handler.render(messages, options)
        said = "I say\n <" if content != "I say <" and source == TEXT else "I say <"
        assert prompt.text == f"[user]hi[/][assistant]{said}"


def test_template_for_tools_may_read_another_form() -> None:
    template = ChatTemplate(TEXT, tool_source=PARTS)
    message = Message("user", "hi")
    assert template_messages([message], template)[0][0]["content"] == "hi"
    made, _ = template_messages([message], template, tools=True)
    assert made[0]["content"] == [{"type": "text", "text": "hi"}]
