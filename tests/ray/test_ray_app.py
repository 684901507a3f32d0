"""The application for Ray Serve, in the example's program, with Ray itself."""

import re
import signal
import subprocess
import sys
from typing import Any

import httpx
import openai
import pytest

from pyengine.ray.application import resources
from pyengine.ray.local_request import text_of
from pyengine.settings.config import EngineConfig
from tests.programs import REPOSITORY, environment

MODEL = "pyengine-demo"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"messages": [{"role": "user", "content": "x"}]}, "[{'role': 'user', 'content': 'x'}]"),
        ({"prompt": "Go on"}, "Go on"),
        ({"input": "Hello"}, "Hello"),
        ({}, ""),
        ([1], ""),
    ],
)
def test_requests_are_compared_by_their_prompts(body: object, text: str) -> None:
    assert text_of(body) == text


def test_ranks_share_a_placement_group() -> None:
    several = resources(EngineConfig(device="cuda", tensor_parallel=4), cpus=2)
    assert several["placement_group_bundles"] == [{"CPU": 8, "GPU": 4}]
    assert several["ray_actor_options"] == {"num_cpus": 8, "num_gpus": 4}
    alone = resources(EngineConfig(device="cpu"), cpus=1)
    assert alone == {"ray_actor_options": {"num_cpus": 1, "num_gpus": 0}}


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.xdist_group("ray")
def test_the_example_answers_through_ray() -> None:
    program = [
        sys.executable,
        str(REPOSITORY / "examples" / "ray_serve.py"),
        "--device",
        "simulated",
    ]
    with subprocess.Popen(
        program,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(RAY_raylet_start_wait_time_s="180"),
    ) as process:
        try:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                if line.startswith("ready:"):
                    break
            found = re.search(r"ready: \S+ at (\S+)/v1", "".join(lines))
            assert found, "".join(lines)
            ask(found[1])
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=120)


def ask(url: str) -> None:
    """Ask in the ways that clients do."""
    question: Any = {"role": "user", "content": "Tell me a story."}
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        whole = client.chat.completions.create(
            model=MODEL, messages=[question], temperature=0, max_tokens=8
        )
        chunks = list(
            client.chat.completions.create(
                model=MODEL, messages=[question], temperature=0, max_tokens=8, stream=True
            )
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert text == whole.choices[0].message.content
        assert len(chunks) > 2
        assert [model.id for model in client.models.list()] == [MODEL]
        with pytest.raises(openai.BadRequestError, match="Unknown parameter: 'temprature'"):
            client.completions.create(model=MODEL, prompt="Go on", extra_body={"temprature": 0})
        prompt = "A beginning that is long enough for some blocks of the cache. " * 8
        cached = 0
        for number in range(8):
            answer = client.completions.create(
                model=MODEL, prompt=f"{prompt}{number}", max_tokens=1
            )
            assert answer.usage is not None
            assert answer.usage.prompt_tokens_details is not None
            cached += answer.usage.prompt_tokens_details.cached_tokens or 0
        # All but the first went to the replica that knew the beginning.
        assert cached >= 7 * 64
    assert httpx.get(f"{url}/ready").json() == {"status": "ready"}
