"""AutoGen: an assistant that calls a tool and reflects on what it says."""

import asyncio
import sys

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient

url, model = sys.argv[1:]
asked = []


async def get_weather(city: str) -> str:
    """The weather."""
    asked.append(city)
    return "dry"


async def main() -> None:
    """Ask the assistant, whole and in a stream."""
    client = OpenAIChatCompletionClient(
        model=model,
        base_url=f"{url}/v1",
        api_key="none",
        model_info={
            "vision": False,
            "function_calling": True,
            "json_output": True,
            "structured_output": True,
            "family": "unknown",
        },
    )
    for streams in (False, True):
        assistant = AssistantAgent(
            "forecast",
            model_client=client,
            tools=[get_weather],
            reflect_on_tool_use=True,
            model_client_stream=streams,
        )
        answer = await assistant.run(task="Rain in Paris?")
        assert answer.messages[-1].content == "It is dry.", answer
    await client.close()


asyncio.run(main())
assert asked == ["Paris"] * 2
