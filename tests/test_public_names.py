"""What ``import pyengine`` gives, and what it costs."""

import inspect
from typing import Any, Unpack

import pytest

import pyengine
from pyengine import AsyncEngine, Engine
from pyengine.chat.options import ChatKeywords, ChatOptions
from pyengine.request.options import (
    EmbedKeywords,
    GenerateKeywords,
    RequestKeywords,
    RequestOptions,
)
from tests.programs import python


def test_every_name_is_where_it_is_said_to_be() -> None:
    assert set(pyengine._MODULE_OF) == set(pyengine.__all__)
    assert list(pyengine.__all__) == sorted(pyengine.__all__)
    for name in pyengine.__all__:
        assert getattr(pyengine, name).__name__ == name
    wanted = {"Tool", "Named", "Grammar", "json_schema", "parse_answer", "InvalidGrammarError"}
    assert wanted <= set(pyengine.__all__)


@pytest.mark.parametrize(
    "names", ["", "Tool, Named", "json_schema, parse_answer, Grammar", "ConfigError, ToolCall"]
)
def test_a_name_brings_no_more_than_it_needs(names: str) -> None:
    program = f"from pyengine import {names}" if names else "import pyengine"
    program += "\nimport sys; print([n for n in ('torch', 'transformers') if n in sys.modules])"
    assert python(program).strip() == "[]"


def _keywords(method: Any) -> set[str]:
    parameters = inspect.signature(method).parameters.values()
    return {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}


def test_keywords_that_are_passed_on_are_those_that_are_taken() -> None:
    shared = set(RequestKeywords.__annotations__)
    # Vectors, decisions and chats ask for these.
    others = {"pooling", "following_logprobs", "thinking_budget"}
    assert {*GenerateKeywords.__annotations__, *others} == _keywords(RequestOptions)
    assert set(EmbedKeywords.__annotations__) < shared
    # Only the endpoints' requests say how a prompt ends, and where their tools stand.
    of_endpoints = {"add_generation_prompt", "continue_final_message", "parameters_at"}
    chat = _keywords(ChatOptions) - of_endpoints
    assert set(ChatKeywords.__annotations__) == shared | chat
    takes: dict[Any, Any] = {
        AsyncEngine.embed: EmbedKeywords,
        AsyncEngine.generate: GenerateKeywords,
        Engine.generate: GenerateKeywords,
        Engine.stream: GenerateKeywords,
        AsyncEngine.chat: ChatKeywords,
        Engine.chat: ChatKeywords,
        Engine.stream_chat: ChatKeywords,
    }
    for method, keywords in takes.items():
        assert inspect.signature(method).parameters["options"].annotation == Unpack[keywords]


EMBEDDED = """
import asyncio, sys
import pyengine

async def main():
    async with pyengine.AsyncEngine() as engine:
        params = pyengine.SamplingParams(max_tokens=4)
        assert (await engine.chat([{"role": "user", "content": "Hello!"}], params)).token_ids
        print(sorted(name for name in sys.modules if name.startswith(("pyengine.http", "granian"))))
        assert engine.completions.create
        assert "pyengine.http.app" in sys.modules

asyncio.run(main())
"""


def test_embedded_engine_loads_no_http_layer_before_an_endpoint_is_asked() -> None:
    assert python(EMBEDDED).strip() == "[]"


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError):
        pyengine.nonsense  # noqa: B018
