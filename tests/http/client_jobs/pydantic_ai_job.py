"""PydanticAI: an agent that calls a tool and answers."""

import sys

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

url, model = sys.argv[1:]
provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
agent = Agent(OpenAIChatModel(model, provider=provider))
asked = []


@agent.tool_plain
def get_weather(city: str) -> str:
    """The weather."""
    asked.append(city)
    return "dry"


assert agent.run_sync("Rain in Paris?").output == "It is dry."
assert asked == ["Paris"]
