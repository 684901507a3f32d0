"""An agent: a loop in which the model calls plain Python functions until it has its answer.

The tools are made from the functions' type hints and docstrings; the model's calls follow their
schemas, so that they can be made without a check. Run it with the model in this process, or against
any OpenAI-compatible endpoint::

    python examples/agent.py
    python examples/agent.py "What is 19 plus 23?"
    python examples/agent.py --url http://127.0.0.1:8000/v1 --model pyengine-demo
"""

import argparse
import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable
from typing import Any, get_type_hints

import msgspec

from pyengine import AsyncEngine, SamplingParams

Message = dict[str, Any]
Ask = Callable[[list[Message], list[Message]], Awaitable[Message]]
"""Asks a model: messages and tools as in OpenAI's chat completions; its answer, a message."""

MOST_ROUNDS = 5
QUESTIONS = (
    "What is the weather in Paris?",
    "What is 19 plus 23?",
    "Set a timer for 15 minutes.",
    "Hello! Who are you?",
)


def get_weather(city: str) -> Message:
    """Get the weather in a city."""
    return {"conditions": {"Paris": "sunny", "London": "rainy"}.get(city, "cloudy")}


def add(a: int, b: int) -> Message:
    """Add two numbers."""
    return {"result": a + b}


def set_timer(minutes: int) -> Message:
    """Set a timer in minutes."""
    return {"status": "set" if minutes > 0 else "over"}


TOOLS: tuple[Callable[..., Message], ...] = (get_weather, add, set_timer)


def described(function: Callable[..., Message]) -> Message:
    """A function as a tool: the schema of its arguments is that of its type hints."""
    hints = get_type_hints(function)
    taken = inspect.signature(function).parameters
    parameters = {
        "type": "object",
        "properties": {name: msgspec.json.schema(hints[name]) for name in taken},
        "required": [name for name, each in taken.items() if each.default is each.empty],
        "additionalProperties": False,
    }
    made = {
        "name": function.__name__,
        "description": inspect.getdoc(function),
        "parameters": parameters,
    }
    return {"type": "function", "function": made}


async def answer(ask: Ask, question: str) -> str:
    """Let the model call tools until it answers in words; prints the dialogue."""
    tools = [described(function) for function in TOOLS]
    functions = {function.__name__: function for function in TOOLS}
    messages: list[Message] = [{"role": "user", "content": question}]
    print(f"user: {question}")
    for _ in range(MOST_ROUNDS):
        said = await ask(messages, tools)
        messages.append(said)
        if not said.get("tool_calls"):
            print(f"model: {said['content']}\n")
            return str(said["content"])
        for call in said["tool_calls"]:
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            result = json.dumps(functions[name](**json.loads(arguments)))
            print(f"call: {name} {arguments} -> {result}")
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    raise RuntimeError(f"no answer after {MOST_ROUNDS} rounds of calls")


def engine_asks(engine: AsyncEngine) -> Ask:
    """Ask the model in this process."""

    async def ask(messages: list[Message], tools: list[Message]) -> Message:
        params = SamplingParams(temperature=0, max_tokens=256)
        return (await engine.chat(messages, params, tools=tools)).message

    return ask


def endpoint_asks(client: Any, model: str) -> Ask:
    """Ask a model behind an OpenAI-compatible endpoint, by a client of the ``openai`` package."""

    async def ask(messages: list[Message], tools: list[Message]) -> Message:
        made = await client.chat.completions.create(
            model=model, messages=messages, tools=tools, temperature=0, max_tokens=256
        )
        said: Message = made.choices[0].message.model_dump(exclude_none=True)
        return {"content": None, **said}

    return ask


async def main(questions: list[str], url: str | None, model: str | None) -> None:
    """Answer the questions, one after the other."""
    if url is None:
        async with AsyncEngine(model) as engine:
            for question in questions:
                await answer(engine_asks(engine), question)
        return
    import openai

    async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:
        served = model or (await client.models.list()).data[0].id
        for question in questions:
            await answer(endpoint_asks(client, served), question)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="An agent with three tools.")
    parser.add_argument("question", nargs="*", help="what to ask; some of its own if none is given")
    parser.add_argument("--url", help="an OpenAI-compatible endpoint, as http://127.0.0.1:8000/v1")
    parser.add_argument("--model", help="a folder or hub name, or what the endpoint serves")
    given = parser.parse_args()
    asyncio.run(main(given.question or list(QUESTIONS), given.url, given.model))
