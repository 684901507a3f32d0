"""Adapters over HTTP: named as models, listed, loaded and unloaded with the admin key."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from pyengine import AsyncEngine
from pyengine.http.access.door import Door
from pyengine.http.access.source import AccessSource
from pyengine.http.serving.server import HttpServer
from pyengine.settings.server import ServerConfig
from tests.adapters import write_adapter
from tests.models import random_llama

ADMIN, KEY = "sk-admin-1", "sk-alice-1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and two adapters."""
    folder = tmp_path_factory.mktemp("adapters")
    (folder / "base").mkdir()
    model = random_llama(folder / "base")
    for name in ("one", "two"):
        write_adapter(folder / name, model, seed=len(name) + ord(name[0]))
    return folder


@pytest.fixture
async def server(folder: Path) -> AsyncIterator[HttpServer]:
    engine = AsyncEngine(str(folder / "base"), adapter=(f"one={folder / 'one'}",), num_blocks=64)
    async with engine:
        rules = AccessSource(ServerConfig(admin_key=ADMIN, api_key=(KEY,))).rules()
        server = HttpServer(engine, port=0, door=Door(rules))
        await server.start()
        yield server
        await server.stop(0)


@pytest.fixture
async def client(server: HttpServer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key=KEY, max_retries=0
    ) as client:
        yield client


async def tokens(client: openai.AsyncOpenAI, model: str) -> str:
    """The text that a model goes on with."""
    answer = await client.completions.create(
        model=model, prompt="Hello there", max_tokens=12, temperature=0,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    assert answer.model == model
    return answer.choices[0].text


async def change(server: HttpServer, path: str, key: str = ADMIN, **body: Any) -> httpx.Response:
    """Post an administrator's request."""
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=server.url, timeout=60, headers=headers) as http:
        return await http.post(path, json=body)


async def test_an_adapter_is_a_model_by_its_name(
    server: HttpServer, client: openai.AsyncOpenAI
) -> None:
    base, one = await tokens(client, "base"), await tokens(client, "one")
    assert base != one
    assert await tokens(client, "base:one") == one
    listed = {model.id: model.to_dict() for model in (await client.models.list()).data}
    assert set(listed) == {"base", "one"}
    assert listed["one"]["parent"] == "base"
    assert "parent" not in listed["base"]
    assert (await client.models.retrieve("one")).to_dict() == listed["one"]
    for name in ("two", "base:two", "one:one", "other:one"):
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            await tokens(client, name)
    vectors = [
        (await client.embeddings.create(model=name, input="Hello")).data[0].embedding
        for name in ("base", "one")
    ]
    assert vectors[0] != vectors[1]


async def test_administrators_load_and_unload_adapters(
    server: HttpServer, client: openai.AsyncOpenAI, folder: Path
) -> None:
    one = await tokens(client, "one")
    load, unload, two = "/v1/load_lora_adapter", "/v1/unload_lora_adapter", str(folder / "two")
    for path in (load, unload, "/load_lora_adapter"):
        refused = await change(server, path, KEY, lora_name="two", lora_path=two)
        assert refused.status_code == 403
    loaded = await change(server, load, lora_name="two", lora_path=two)
    assert loaded.status_code == 200, loaded.text
    second = await tokens(client, "two")
    assert second != one
    again = await change(server, load, lora_name="one", lora_path=two)
    assert (again.status_code, again.json()["error"]["param"]) == (400, "lora_name")
    again = await change(server, load, lora_name="one", lora_path=two, load_inplace=True)
    assert again.json()["digest"] == loaded.json()["digest"]
    assert await tokens(client, "one") == second
    gone = await change(server, unload, lora_name="one")
    assert gone.status_code == 200
    with pytest.raises(openai.NotFoundError):
        await tokens(client, "one")
    assert (await change(server, unload, lora_name="one")).status_code == 404
    bad = await change(server, load, lora_name="three", lora_path=str(folder / "base"))
    assert bad.status_code == 400
    assert bad.json()["error"]["code"] == "invalid_adapter"
