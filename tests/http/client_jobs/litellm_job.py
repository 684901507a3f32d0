"""LiteLLM: by both of its names for such a server, and Anthropic's messages through it."""

import asyncio
import sys

import litellm

url, model = sys.argv[1:]
hello = [{"role": "user", "content": "hello"}]
for prefix in ("openai", "hosted_vllm"):
    given = {"model": f"{prefix}/{model}", "api_base": f"{url}/v1", "api_key": "none"}
    answer = litellm.completion(messages=hello, **given)
    assert answer.choices[0].message.content == "It is dry."
    assert answer.usage.completion_tokens > 0
    parts = litellm.completion(messages=hello, stream=True, **given)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == "It is dry."


async def bridges() -> None:
    """Anthropic's messages: made chat completions on the way, and as they are."""
    for name, base in ((f"hosted_vllm/{model}", f"{url}/v1"), (f"anthropic/{model}", url)):
        answer = await litellm.anthropic.messages.acreate(
            model=name, messages=hello, max_tokens=50, api_base=base, api_key="none"
        )
        text = [block["text"] for block in answer["content"] if block["type"] == "text"]
        assert text == ["It is dry."], answer


asyncio.run(bridges())
