"""OpenAI's agents: over chat completions, and over responses."""

import asyncio
import sys

import openai
from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)

url, model = sys.argv[1:]
set_tracing_disabled(True)
asked = []


@function_tool
def get_weather(city: str) -> str:
    """The weather."""
    asked.append(city)
    return "dry"


async def main() -> None:
    """Ask both."""
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
            agent = Agent(
                name="forecast",
                instructions="Be brief.",
                model=kind(model=model, openai_client=client),
                tools=[get_weather],
            )
            answer = await Runner.run(agent, "Rain in Paris?")
            assert answer.final_output == "It is dry.", answer


asyncio.run(main())
assert asked == ["Paris"] * 2
