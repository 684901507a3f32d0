"""Instructor: an object by a JSON Schema, and by a tool."""

import sys

import instructor
import openai
from pydantic import BaseModel

url, model = sys.argv[1:]


class Weather(BaseModel):
    """The weather of a city."""

    city: str
    dry: bool


for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as plain:
        client = instructor.from_openai(plain, mode=mode)
        found = client.chat.completions.create(
            model=model,
            response_model=Weather,
            messages=[{"role": "user", "content": "Rain in Paris?"}],
            max_retries=0,
        )
    assert (found.city, found.dry) == ("Paris", True), found
