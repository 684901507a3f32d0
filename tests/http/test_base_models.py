"""Models without a chat template: they complete, and say what to do where a chat is asked for."""

from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest
from transformers import GPT2Config

from pyengine import AsyncEngine
from tests.models import random_model


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    random_model(tmp_path, GPT2Config)
    async with AsyncEngine(tmp_path, served_name=("tiny-gpt2",), kv_cache_mib=4) as engine:
        yield engine


async def test_a_base_model_completes_and_refuses_to_chat(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(
        model="tiny-gpt2", prompt="Once upon", max_tokens=5, temperature=0
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5
    with pytest.raises(openai.BadRequestError, match=r"no chat template.*/v1/completions") as found:
        await client.chat.completions.create(
            model="tiny-gpt2", messages=[{"role": "user", "content": "Once upon"}]
        )
    assert found.value.param == "messages"
    with pytest.raises(openai.BadRequestError, match=r"chat_template\.jinja"):
        await client.responses.create(model="tiny-gpt2", input="Once upon")
