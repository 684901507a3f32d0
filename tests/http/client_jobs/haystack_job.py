"""Haystack: a chat generator, whole and in a stream, and a tool's call."""

import sys

from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from haystack.utils import Secret

url, model = sys.argv[1:]


def get_weather(city: str) -> str:
    """The weather."""
    return "dry"


parts: list[str] = []
given = {"model": model, "api_base_url": f"{url}/v1", "api_key": Secret.from_token("none")}
hello = [ChatMessage.from_user("hello")]
assert OpenAIChatGenerator(**given).run(hello)["replies"][0].text == "It is dry."
streaming = OpenAIChatGenerator(**given, streaming_callback=lambda part: parts.append(part.content))
assert streaming.run(hello)["replies"][0].text == "".join(parts) == "It is dry."
with_tools = OpenAIChatGenerator(**given, tools=[create_tool_from_function(get_weather)])
(call,) = with_tools.run([ChatMessage.from_user("Rain in Paris?")])["replies"][0].tool_calls
assert (call.tool_name, call.arguments) == ("get_weather", {"city": "Paris"})
