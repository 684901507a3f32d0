"""The agent of the examples: its tools run, and their results are in its answers."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import openai
import pytest

from pyengine import AsyncEngine
from pyengine.http.serving.server import HttpServer
from tests.programs import REPOSITORY, environment

AGENT = REPOSITORY / "examples" / "agent.py"


@pytest.fixture(scope="module")
def agent() -> ModuleType:
    spec = importlib.util.spec_from_file_location("agent", AGENT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
async def engine() -> AsyncIterator[AsyncEngine]:
    async with AsyncEngine() as engine:
        yield engine


@pytest.fixture(params=["engine", "endpoint"])
async def ask(
    request: pytest.FixtureRequest, agent: ModuleType, engine: AsyncEngine
) -> AsyncIterator[Any]:
    if request.param == "engine":
        yield agent.engine_asks(engine)
        return
    server = HttpServer(engine, port=0)
    await server.start()
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        yield agent.endpoint_asks(client, engine.model_name)
    await server.stop(0)


def run(*arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, AGENT, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment(),
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.slow
def test_as_a_program(tmp_path: Path) -> None:
    said = run(cwd=tmp_path)
    assert 'call: get_weather {"city": "Paris"} -> {"conditions": "sunny"}' in said
    assert "model: It is sunny in Paris." in said
    assert 'call: add {"a": 19, "b": 23} -> {"result": 42}' in said
    assert "model: The result is 42." in said
    assert 'call: set_timer {"minutes": 15} -> {"status": "set"}' in said
    assert "The timer for 15 minutes is set." in said
    assert said.count("call: ") == 3
    assert "pyengine demo model" in said.splitlines()[-2]


async def test_results_reach_the_answer(
    ask: Any, agent: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = []

    def get_weather(city: str) -> dict[str, Any]:
        """Get the weather in a city."""
        called.append(city)
        return {"conditions": "stormy"}

    monkeypatch.setattr(agent, "TOOLS", (get_weather, agent.add, agent.set_timer))
    assert await agent.answer(ask, "What is the weather in Rome?") == "It is stormy in Rome."
    assert called == ["Rome"]


async def test_agent_gives_up_on_a_model_that_only_calls(agent: ModuleType) -> None:
    rounds = []

    async def ask(messages: list[Any], tools: list[Any]) -> dict[str, Any]:
        rounds.append(len(messages))
        arguments = json.dumps({"a": 1, "b": 2})
        call = {"id": "1", "function": {"name": "add", "arguments": arguments}}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    with pytest.raises(RuntimeError, match="no answer"):
        await agent.answer(ask, "Add")
    assert rounds == [1, 3, 5, 7, 9]


def test_tools_are_described_by_their_hints(agent: ModuleType) -> None:
    def find(name: str, tags: list[str], most: int = 3, exact: bool | None = None) -> Any:
        """Find a thing."""

    assert agent.described(find)["function"] == {
        "name": "find",
        "description": "Find a thing.",
        "parameters": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "most": {"type": "integer"},
                "exact": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
            },
            "required": ["name", "tags"],
            "additionalProperties": False,
        },
    }
