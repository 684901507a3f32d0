"""Files and batches through OpenAI's client."""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from pyengine.http.access.door import Door
from pyengine.http.access.source import AccessSource
from pyengine.http.batches.lines import Malformed, RequestLine, read_lines
from pyengine.http.batches.run import decode_batch
from pyengine.http.limits import Limits
from pyengine.http.serving.server import HttpServer
from pyengine.http.store.database import Database
from pyengine.http.store.store import Store, StoreLimits
from pyengine.settings.config import EngineConfig
from pyengine.settings.server import ServerConfig
from tests.http.fake_engine import ANSWER, FakeEngine
from tests.programs import until

CHAT = "/v1/chat/completions"
HELLO: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(config=EngineConfig(max_sequences=16))


@pytest.fixture
def limits() -> Limits:
    return Limits(file_bytes=100_000)


def lines(count: int, url: str = CHAT, **body: Any) -> list[dict[str, Any]]:
    body = body or {"messages": HELLO}
    return [
        {"custom_id": f"r{number}", "method": "POST", "url": url, "body": body}
        for number in range(count)
    ]


def encoded(requests: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(each) + "\n" for each in requests).encode()


async def begun(
    client: openai.AsyncOpenAI, data: bytes, endpoint: Any = CHAT, **given: Any
) -> openai.types.Batch:
    file = await client.files.create(file=("in.jsonl", data), purpose="batch")
    return await client.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window="24h", **given
    )


async def ended(client: openai.AsyncOpenAI, server: HttpServer, name: str) -> openai.types.Batch:
    """The batch, when it has."""
    while True:
        batch = await client.batches.retrieve(name)
        if batch.status in ("failed", "completed", "expired", "cancelled"):
            return batch
        await server.app.store.look()


async def answers(client: openai.AsyncOpenAI, name: str | None) -> dict[str, Any]:
    assert name is not None
    data = (await client.files.content(name)).content
    made = [json.loads(line) for line in data.splitlines()]
    assert len({line["id"] for line in made}) == len(made)
    return {line["custom_id"]: line for line in made}


async def test_files(client: openai.AsyncOpenAI, http: httpx.AsyncClient) -> None:
    data = bytes(range(256)) * 100
    made = await client.files.create(file=("Grüße.bin", data), purpose="user_data")
    assert (made.bytes, made.filename, made.purpose) == (len(data), "Grüße.bin", "user_data")
    assert (await client.files.retrieve(made.id)) == made
    assert (await client.files.content(made.id)).content == data
    kept = await client.files.create(
        file=b"x", purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert kept.expires_at == kept.created_at + 3600
    assert [file.id async for file in client.files.list()] == [kept.id, made.id]
    assert [file.id async for file in client.files.list(order="asc", limit=1)] == [
        made.id,
        kept.id,
    ]
    assert [file.id async for file in client.files.list(purpose="batch")] == [kept.id]
    gone = await client.files.delete(made.id)
    assert (gone.id, gone.deleted) == (made.id, True)
    with pytest.raises(openai.NotFoundError, match="No file with the id"):
        await client.files.content(made.id)
    empty = await client.files.create(file=("empty", b""), purpose="batch")
    assert (await client.files.content(empty.id)).content == b""


@pytest.mark.parametrize(
    ("form", "files", "param"),
    [
        ({"purpose": "batch"}, None, "file"),
        ({}, {"file": b"x"}, "purpose"),
        ({"purpose": "fun"}, {"file": b"x"}, "purpose"),
        ({"purpose": "batch", "more": "1"}, {"file": b"x"}, "more"),
        (
            {"purpose": "batch", "expires_after[seconds]": "1"},
            {"file": b"x"},
            "expires_after.anchor",
        ),
    ],
)
async def test_forms_that_are_refused(
    http: httpx.AsyncClient, form: dict[str, str], files: Any, param: str
) -> None:
    del http.headers["content-type"]
    files = files or {"other": (None, "x")}
    answer = await http.post("/v1/files", data=form, files=files)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] in (param, "other")


@pytest.mark.parametrize("names", [("purpose", "purpose[x]"), ("purpose[x]", "purpose")])
async def test_field_of_a_form_in_two_forms_is_refused(
    http: httpx.AsyncClient, names: tuple[str, str]
) -> None:
    del http.headers["content-type"]
    fields = dict.fromkeys(names, "batch")
    answer = await http.post("/v1/files", data=fields, files={"file": b"{}"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "purpose"


async def test_bodies_that_are_no_forms(http: httpx.AsyncClient) -> None:
    assert (await http.post("/v1/files", json={})).status_code == 415
    headers = {"content-type": "multipart/form-data; boundary=x"}
    assert (await http.post("/v1/files", content=b"nothing", headers=headers)).status_code == 400
    headers = {"content-type": "multipart/form-data"}
    assert (await http.post("/v1/files", content=b"nothing", headers=headers)).status_code == 400
    del http.headers["content-type"]
    large = {"file": b"x" * 200_000}
    many = {"purpose": "batch", **{f"field-{number}": "" for number in range(300)}}
    answer = await http.post("/v1/files", data=many, files={"file": b"{}"})
    assert answer.status_code == 400
    assert "more than 100 fields" in answer.json()["error"]["message"]
    answer = await http.post("/v1/files", data={"purpose": "batch"}, files=large)
    assert answer.status_code == 413
    assert "100000" in answer.json()["error"]["message"]


async def test_a_batch(client: openai.AsyncOpenAI, server: HttpServer, engine: FakeEngine) -> None:
    data = encoded([*lines(20), *[{**lines(1, max_tokens=-1)[0], "custom_id": "bad"}]])
    expiry: Any = {"anchor": "created_at", "seconds": 3600}
    made = await begun(client, data, metadata={"a": "b"}, output_expires_after=expiry)
    assert (made.status, made.metadata, made.endpoint) == ("validating", {"a": "b"}, CHAT)
    done = await ended(client, server, made.id)
    assert done.status == "completed", done.errors
    assert done.request_counts is not None
    assert done.request_counts.model_dump() == {"total": 21, "completed": 20, "failed": 1}
    assert done.model == engine.model_name
    good, bad = (
        await answers(client, done.output_file_id),
        await answers(client, done.error_file_id),
    )
    assert set(good) == {f"r{number}" for number in range(20)}
    each = [line["response"]["body"]["usage"] for line in good.values()]
    assert done.usage is not None
    assert done.usage.input_tokens == sum(usage["prompt_tokens"] for usage in each)
    assert done.usage.output_tokens == sum(usage["completion_tokens"] for usage in each)
    assert done.usage.total_tokens == done.usage.input_tokens + done.usage.output_tokens
    assert done.usage.input_tokens_details.cached_tokens > 0
    answer = good["r7"]
    assert answer["error"] is None
    assert answer["response"]["status_code"] == 200
    assert answer["response"]["request_id"].startswith("req-")
    assert answer["response"]["body"]["choices"][0]["message"]["content"] == ANSWER
    assert list(bad) == ["bad"]
    assert bad["bad"]["response"]["status_code"] == 400
    # Others go first, and the batch has no more than its share.
    assert {asked.priority for asked in engine.asked} == {1000}
    file = await client.files.retrieve(done.output_file_id or "")
    assert file.purpose == "batch_output"
    assert file.expires_at == file.created_at + 3600
    assert file.bytes == len((await client.files.content(file.id)).content)
    assert [batch.id async for batch in client.batches.list()] == [made.id]
    with pytest.raises(openai.BadRequestError, match="completed"):
        await client.batches.cancel(made.id)


async def test_its_share(
    client: openai.AsyncOpenAI, server: HttpServer, engine: FakeEngine
) -> None:
    engine.hold_after = 1
    made = await begun(client, encoded(lines(10)))
    await engine.until(lambda: len(engine.running) == 4)
    assert len(engine.running) == engine.config.limits.max_sequences // 4
    cancelling = await client.batches.cancel(made.id)
    assert cancelling.status == "cancelling"
    done = await ended(client, server, made.id)
    assert (done.status, done.output_file_id, done.error_file_id) == ("cancelled", None, None)
    assert engine.aborted == 4
    assert len(engine.asked) == 4


async def test_all_endpoints(client: openai.AsyncOpenAI, server: HttpServer) -> None:
    bodies: dict[str, Any] = {
        "/v1/completions": {"prompt": "a"},
        "/v1/responses": {"input": "a", "store": False},
        "/v1/messages": {"messages": HELLO, "max_tokens": 3},
    }
    for url, body in bodies.items():
        made = await begun(client, encoded(lines(1, url, **body)), url)
        done = await ended(client, server, made.id)
        [answer] = (await answers(client, done.output_file_id)).values()
        assert answer["response"]["status_code"] == 200


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "empty_file"),
        (b"{\n", "invalid_json"),
        (encoded(lines(1, "/v1/completions")), "invalid_url"),
        (encoded(lines(1) * 2), "duplicate_custom_id"),
        (encoded(lines(1, messages=HELLO, stream=True)), "invalid_body"),
    ],
)
async def test_malformed_inputs(
    client: openai.AsyncOpenAI, server: HttpServer, engine: FakeEngine, data: bytes, code: str
) -> None:
    done = await ended(client, server, (await begun(client, data)).id)
    assert done.status == "failed"
    assert done.errors is not None
    assert done.errors.data is not None
    assert done.errors.data[0].code == code
    assert not engine.asked


@pytest.mark.parametrize("code", ["invalid_json", "too_many_requests"])
async def test_an_input_is_read_to_its_limits_and_no_further(
    client: openai.AsyncOpenAI,
    server: HttpServer,
    monkeypatch: pytest.MonkeyPatch,
    code: str,
) -> None:
    data = b"x\n" * 40_000 if code == "invalid_json" else encoded(lines(600))
    read = 0

    def counted(*given: Any) -> Iterator[RequestLine | Malformed]:
        nonlocal read
        for line in read_lines(*given):
            read += 1
            yield line

    monkeypatch.setattr("pyengine.http.batches.run.read_lines", counted)
    monkeypatch.setattr("pyengine.http.batches.run.MAX_LINES", 500)
    done = await ended(client, server, (await begun(client, data)).id)
    assert done.status == "failed"
    assert done.errors is not None
    assert done.errors.data is not None
    assert {error.code for error in done.errors.data} == {code}
    assert read == (100 if code == "invalid_json" else 501)


async def test_wrong_batches_are_refused_at_once(client: openai.AsyncOpenAI) -> None:
    file = await client.files.create(file=b"x", purpose="user_data")
    given: Any = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
    for wrong, param in (
        ({}, "input_file_id"),
        ({"input_file_id": "file-none"}, "input_file_id"),
        ({"endpoint": "/v1/models"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            await client.batches.create(**{**given, **wrong})
        assert refused.value.param == param
    with pytest.raises(openai.NotFoundError, match="No batch with the id"):
        await client.batches.retrieve("batch_none")


async def test_a_later_server_goes_on(tmp_path: Path, engine: FakeEngine) -> None:
    """Lines that were answered are not asked again."""
    door = Door(AccessSource(ServerConfig(api_key=("sk-alice-1",))).rules())
    path = str(tmp_path / "store")

    async def serve(over: FakeEngine) -> tuple[HttpServer, openai.AsyncOpenAI]:
        await over.start()
        server = HttpServer(over, port=0, door=door, store=Store(StoreLimits(path=path)))
        await server.start()
        url = f"{server.url}/v1"
        return server, openai.AsyncOpenAI(base_url=url, api_key="sk-alice-1", max_retries=0)

    engine.hold_after = 1
    server, client = await serve(engine)
    made = await begun(client, encoded(lines(12)))
    await engine.until(lambda: len(engine.running) == 4)
    engine.release()
    await engine.until(lambda: len(engine.asked) >= 6)
    engine.hold_after = 1
    await server.stop(0)
    await client.close()
    later = FakeEngine(config=engine.config)
    server, client = await serve(later)
    done = await ended(client, server, made.id)
    assert (done.status, done.request_counts and done.request_counts.completed) == ("completed", 12)
    assert len(await answers(client, done.output_file_id)) == 12
    assert len(later.asked) < 12
    assert {asked.tenant for asked in later.asked} <= {"api-key"}
    await client.close()
    await server.stop(0)


async def test_a_server_that_lost_its_batch_writes_no_more(
    tmp_path: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a pause that is longer than its lease."""
    monkeypatch.setattr("pyengine.http.batches.run._TICK_S", 1e9)
    path = str(tmp_path / "store")
    engine.hold_after = 1
    later = FakeEngine(config=engine.config)
    servers = []
    for over in (engine, later):
        await over.start()
        server = HttpServer(over, port=0, store=Store(StoreLimits(path=path)))
        servers.append(server)
        async with openai.AsyncOpenAI(
            base_url=f"{await server.start()}/v1", api_key="none", max_retries=0
        ) as client:
            if over is engine:
                made = await begun(client, encoded(lines(12)))
                await engine.until(lambda: len(engine.running) == 4)
                database = Database(path, 1 << 30)
                database._connection.execute("UPDATE objects SET lease = 0")
                database.close()
            else:
                assert (await ended(client, server, made.id)).status == "completed"
                engine.release()
                await until(lambda: servers[0].app.batches._running is None)
                done = await client.batches.retrieve(made.id)
                assert done.request_counts is not None
                assert (done.request_counts.completed, done.request_counts.failed) == (12, 0)
                assert len(await answers(client, done.output_file_id)) == 12
    assert len(engine.asked) == 4
    for server in servers:
        await server.stop(0)


async def test_a_store_that_is_locked_for_long_ends_nothing(
    tmp_path: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyengine.http.store.database._BUSY_S", 0)
    monkeypatch.setattr("pyengine.http.store.clock.LEASE_S", 0)
    monkeypatch.setattr("pyengine.http.batches.runner._LOOK_S", 0.01)
    path = str(tmp_path / "store")
    engine.hold_after = 1
    await engine.start()
    server = HttpServer(engine, port=0, store=Store(StoreLimits(path=path)))
    url = await server.start()
    locking = sqlite3.connect(path, isolation_level=None)
    async with (
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
        httpx.AsyncClient(base_url=url) as http,
    ):
        made = await begun(client, encoded(lines(12)))
        await engine.until(lambda: len(engine.running) == 4)
        locking.execute("BEGIN IMMEDIATE")
        engine.release()
        asked = {"model": "org/fake", "input": "Hi"}
        answer = await http.post("/v1/responses", json=asked)
        assert answer.status_code == 200
        assert "is not stored" in answer.json()["warnings"][-1]
        refused = await http.post("/v1/responses", json={**asked, "store": True})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable")
        assert (await client.batches.retrieve(made.id)).status == "in_progress"
        locking.execute("ROLLBACK")
        done = await ended(client, server, made.id)
        assert (done.status, done.request_counts and done.request_counts.completed) == (
            "completed", 12,
        )  # fmt: skip
        assert len(await answers(client, done.output_file_id)) == 12
    locking.close()
    await server.stop(0)


async def test_the_limits_of_a_key_hold(tmp_path: Path, engine: FakeEngine) -> None:
    """The upload and the batch are two of its six requests a minute."""
    keys = '[[keys]]\nname = "alice"\nkey = "sk-alice-1"\nrequests_per_minute = 6\n'
    (tmp_path / "keys").write_text(keys)
    rules = AccessSource(ServerConfig(api_key_file=str(tmp_path / "keys"))).rules()
    await engine.start()
    server = HttpServer(engine, port=0, door=Door(rules))
    await server.start()
    url = f"{server.url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="sk-alice-1", max_retries=0) as client:
        made = await begun(client, encoded(lines(12)))
        store = server.app.store  # asking the server would count, too
        while True:
            counts = decode_batch((await store.get("batch", "alice", made.id)).body).request_counts
            if counts.completed == 4:
                break
            await store.look()
        assert len(engine.asked) == 4
        assert {asked.tenant for asked in engine.asked} == {"alice"}
    await server.stop(0)


async def test_answers_against_the_client(
    client: openai.AsyncOpenAI, http: httpx.AsyncClient, server: HttpServer
) -> None:
    """Strictly: the client itself takes anything."""
    made = await begun(client, encoded(lines(1)))
    await ended(client, server, made.id)
    failed = await begun(client, b"{")
    await ended(client, server, failed.id)
    page = (await http.get("/v1/batches")).json()
    assert [each["id"] for each in page["data"]] == [failed.id, made.id]
    for each in page["data"]:
        openai.types.Batch.model_validate(each, strict=True)
    files = (await http.get("/v1/files")).json()
    assert len(files["data"]) == 3
    for each in files["data"]:
        openai.types.FileObject.model_validate(each, strict=True)
