"""LlamaIndex: an answer, a stream of one, and a tool's call."""

import sys

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

url, model = sys.argv[1:]
llm = OpenAILike(
    model=model,
    api_base=f"{url}/v1",
    api_key="none",
    is_chat_model=True,
    is_function_calling_model=True,
)


def get_weather(city: str) -> str:
    """The weather."""
    return f"dry in {city}"


hello = [ChatMessage(role="user", content="hello")]
assert llm.chat(hello).message.content == "It is dry."
assert "".join(part.delta or "" for part in llm.stream_chat(hello)) == "It is dry."
assert llm.complete("hello").text == "It is dry."
tool = FunctionTool.from_defaults(get_weather)
answer = llm.chat_with_tools([tool], user_msg="Rain in Paris?")
(call,) = llm.get_tool_calls_from_response(answer)
assert (call.tool_name, call.tool_kwargs) == ("get_weather", {"city": "Paris"})
