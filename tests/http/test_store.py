"""The store: bounded, apart by owner, shared by processes, gone after its time."""

import asyncio
import itertools
import re
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import httpx
import msgspec
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine.errors import ConfigError
from pyengine.http.errors import NoSuchObjectError, StoreFullError
from pyengine.http.store import clock
from pyengine.http.store.database import Database, Part
from pyengine.http.store.shared import SharedStore
from pyengine.http.store.store import Store, StoreLimits, StoreUse
from tests.clients import client_of
from tests.programs import environment, served


@pytest.fixture(params=["memory", "file"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    path = str(tmp_path / "store") if request.param == "file" else None
    store = Store(StoreLimits(path=path, most_bytes=1000))
    yield store
    await store.close()


async def test_objects_and_parts(store: Store) -> None:
    await store.put("x", "alice", "1", b"{}", Part("p", 0, b"a"), Part("p", 1, b"b"))
    assert (await store.get("x", "alice", "1")).body == b"{}"
    for kind, owner, name in (("y", "alice", "1"), ("x", "bob", "1"), ("x", "alice", "2")):
        with pytest.raises(NoSuchObjectError):
            await store.get(kind, owner, name)
        with pytest.raises(NoSuchObjectError):
            await store.delete(kind, owner, name)
    assert await store.change("1", lambda body: body + b" ", Part("p", 5, b"c")) == b"{} "
    assert await store.change("1", lambda _: None) == b"{} "
    assert await store.change("none", lambda _: b"x") is None
    # What another process has done already is not done again.
    assert await store.change("1", lambda _: b"twice", Part("p", 5, b"d")) == b"{} "
    assert await store.parts("1", "p", after=0) == [Part("p", 1, b"b"), Part("p", 5, b"c")]
    assert await store.parts("1", "p", limit=1) == [Part("p", 0, b"a")]
    assert await store.numbers("1", "p") == {0, 1, 5}
    await store.delete("x", "alice", "1")
    assert not await store.parts("1", "p")


async def test_pages(store: Store) -> None:
    for number in range(7):
        await store.put(
            "x", "alice", f"{number}", b'{"model":"%s"}' % (b"odd" if number % 2 else b"even")
        )
        await store.put("x", "bob", f"b{number}", b"")

    async def page(after: str | None, *, descending: bool = False) -> tuple[list[str], bool]:
        found = await store.page("x", "alice", after=after, limit=3, descending=descending)
        return [row.id for row in found.rows], found.more

    assert await page(None) == (["0", "1", "2"], True)
    assert await page("2") == (["3", "4", "5"], True)
    assert await page("3") == (["4", "5", "6"], False)
    assert await page("6") == ([], False)
    assert await page("4", descending=True) == (["3", "2", "1"], True)
    with pytest.raises(NoSuchObjectError):
        await page("b1")
    odd = await store.page(
        "x", "alice", after=None, limit=3, descending=True, labels={"model": "odd"}
    )
    assert [row.id for row in odd.rows] == ["5", "3", "1"]
    assert not odd.more


async def test_expired_object_is_not_found(store: Store) -> None:
    await store.put("x", "", "1", b"", seconds=-1)
    await store.put("x", "", "2", b"")
    with pytest.raises(NoSuchObjectError):
        await store.get("x", "", "1")
    page = await store.page("x", "", after=None, limit=5, descending=False)
    assert [row.id for row in page.rows] == ["2"]


async def test_store_says_how_full_it_is(store: Store) -> None:
    assert await store.use() == StoreUse(0, {})
    await store.put("x", "", "1", b"12345", Part("a", 0, b"678"))
    await store.put("y", "alice", "2", b"9")
    await store.put("x", "alice", "3", b"")
    assert await store.use() == StoreUse(9, {"x": 2, "y": 1})
    await store.delete("x", "", "1")
    assert await store.use() == StoreUse(1, {"x": 1, "y": 1})


async def test_use_of_a_store_does_not_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyengine.http.store.store._USE_S", 0.01)
    store = Store(StoreLimits(path=str(tmp_path / "store")))
    await store.put("x", "", "1", b"12345")
    assert await store.use() == StoreUse(5, {"x": 1})
    held, go = threading.Event(), threading.Event()

    def hold(body: bytes) -> bytes:
        held.set()
        go.wait()
        return body + b"6"

    changing = asyncio.create_task(store.change("1", hold))
    await asyncio.to_thread(held.wait)
    for _ in range(3):
        assert await store.use() == StoreUse(5, {"x": 1})
    go.set()
    await changing
    await store.close()


async def test_the_bound(store: Store) -> None:
    await store.put("x", "alice", "a", b"1" * 100)
    await store.put("x", "bob", "lease", b"1" * 100, lease=True)
    for number in range(20):
        await store.put("x", "bob", f"{number}", b"1" * 50, Part("p", 0, b"1" * 50))
    await store.get("x", "alice", "a")
    await store.get("x", "bob", "lease")
    with pytest.raises(NoSuchObjectError):
        await store.get("x", "bob", "0")
    await store.get("x", "bob", "19")
    with pytest.raises(StoreFullError):
        await store.put("x", "bob", "large", b"1" * 950)
    # What does not fit has removed nothing.
    await store.get("x", "bob", "19")


@pytest.mark.parametrize("owners", [1, 30])
def test_work_of_an_eviction_does_not_grow_with_the_objects(owners: int) -> None:
    work = []
    for count in (300, 3_000):
        database = Database(None, count * 40)
        for number in range(count):
            row = (f"{number}", f"owner-{number % owners}", b"1" * 20)
            database.put("x", row, 1e12, 0, [Part("p", 0, b"1" * 20)])
        assert database.total == count * 40
        steps = itertools.count()
        database._connection.set_progress_handler(partial(_count, steps), 1)
        database.put("x", ("large", "owner-0", b"1" * 2_000), 1e12, 0, [])
        work.append(next(steps))
        assert count * 40 - 40 < database.total <= count * 40
    assert work[1] < 1.5 * work[0]


def test_work_of_finding_labels_does_not_grow_with_the_objects() -> None:
    work = []
    for count in (300, 3_000):
        database = Database(None, 1 << 30)
        for number in range(count):
            tag = "b" if number % (count // 3) == 0 else "c"
            body = msgspec.json.encode({"model": "m", "metadata": {"a": tag, "n": str(number)}})
            database.put("x", (f"{number}", "owner", body), 1e12, 0, [])
        steps = itertools.count()
        database._connection.set_progress_handler(partial(_count, steps), 1)
        found = database.page("x", "owner", None, {"metadata.a": "b"}, descending=True)
        assert found is not None
        assert [int(row.id) for row in found] == [2 * count // 3, count // 3, 0]
        work.append(next(steps))
        database.change("0", lambda _: b'{"model": "m", "metadata": {"a": "d"}}', None)
        database.delete("x", "owner", str(count // 3))
        labels = {"model": "m", "metadata.a": "b"}
        again = database.page("x", "owner", None, labels, descending=False)
        assert again is not None
        assert [int(row.id) for row in again] == [2 * count // 3]
    assert work[1] < 1.5 * work[0]


def _count(steps: "itertools.count[int]") -> int:
    next(steps)
    return 0


async def test_claims(store: Store) -> None:
    await store.put("x", "", "lease", b"active", lease=True)
    await store.put("x", "", "done", b"done")
    await store.put("x", "", "lost", b"active")
    claimed = await store.claim("x", lambda body: body == b"active")
    assert claimed is not None
    assert claimed.id == "lost"
    assert await store.claim("x", lambda body: body == b"active") is None
    await store.change("lease", lambda _: None, lease=False)
    again = await store.claim("x", lambda body: body == b"active")
    assert again is not None
    assert again.id == "lease"


async def test_a_lease_does_not_depend_on_the_clock(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.put("x", "", "held", b"active", lease=True)
    now = time.time()
    for moment in (now + 7200, now - 7200):
        monkeypatch.setattr(time, "time", lambda moment=moment: moment)
        assert await store.claim("x", lambda _: True) is None


async def test_a_lease_of_an_earlier_boot_is_none(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.put("x", "", "before", b"active", lease=True)
    monkeypatch.setattr(clock, "_uptime", lambda: 10.0)
    claimed = await store.claim("x", lambda _: True)
    assert claimed is not None
    assert claimed.id == "before"


async def test_a_clock_that_is_ahead_removes_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, up = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
    await store.put("x", "", "kept", b"1")
    await store.put("x", "", "short", b"1", seconds=60)
    monkeypatch.setattr(time, "time", lambda: now + 31 * 86400)
    await store.put("x", "", "during", b"2")  # at once, and
    monkeypatch.setattr(clock, "_uptime", lambda: up + 4000.0)
    await store.put("x", "", "later", b"3")  # when the server has run for more than an hour
    monkeypatch.setattr(time, "time", lambda: now)
    assert (await store.get("x", "", "kept")).body == b"1"
    assert (await store.use()).objects == {"x": 3}, "what has expired is removed"


def _same(body: bytes, _: bytes) -> bytes:
    return body


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["put", "change", "delete"]), st.integers(0, 5), st.integers(0, 120)),
    max_size=40,
)


@settings(deadline=None)
@given(actions=ACTIONS)
def test_the_total_is_the_sum(actions: list[tuple[str, int, int]]) -> None:
    database = Database(None, 300)
    for number, (action, name, size) in enumerate(actions):
        owner = "ab"[name % 2]
        if action == "put" and database.get("x", owner, str(name)) is None:
            parts = [Part("p", 0, b"1" * (size // 2))]
            database.put("x", (str(name), owner, b"1" * size), 1e12, 0, parts)
        elif action == "change":
            body = b"1" * size
            database.change(str(name), partial(_same, body), None)
        else:
            database.delete("x", owner, str(name))
        rows = [database.get("x", owner, str(name)) for name in range(6) for owner in "ab"]
        sizes = [
            len(row.body) + sum(len(part.data) for part in database.parts(row.id, "p", -1, 9))
            for row in rows
            if row is not None
        ]
        assert database.total == sum(sizes) <= 300, number
    database.close()


async def test_processes_share_a_file(tmp_path: Path) -> None:
    limits = StoreLimits(path=str(tmp_path / "store"))
    one, other = Store(limits), Store(limits)
    assert stat.S_IMODE((tmp_path / "store").stat().st_mode) == 0o600
    await one.put("x", "", "1", b"a")
    assert (await other.get("x", "", "1")).body == b"a"

    def add(body: bytes) -> bytes:
        return body + b"a"

    await asyncio.gather(*(store.change("1", add) for store in (one, other) for _ in range(50)))
    assert (await one.get("x", "", "1")).body == b"a" * 101
    await one.close()
    await other.close()


def test_what_killed_servers_have_stored_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = (
        "import os, tempfile; tempfile.tempdir = os.getcwd()\n"
        "from pyengine.http.store.shared import SharedStore, StoreLimits\n"
        "store = SharedStore(StoreLimits())\n"
        "os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment(), check=False)
    [abandoned] = tmp_path.iterdir()
    (tmp_path / "pyengine-store-file").touch()
    stores = [SharedStore(StoreLimits()) for _ in range(2)]
    paths = {Path(store.limits.path or "").parent for store in stores}
    assert {*tmp_path.iterdir()} == {*paths, tmp_path / "pyengine-store-file"}
    assert abandoned not in paths
    for store in stores:
        store.close()
    assert [path.name for path in tmp_path.iterdir()] == ["pyengine-store-file"]


async def test_files_that_are_no_stores_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("something else, which is long enough to be read" * 20)
    for path in (tmp_path / "text", tmp_path / "no" / "folder", tmp_path):
        with pytest.raises(ConfigError, match="cannot be opened") as refused:
            Store(StoreLimits(path=str(path)))
        assert refused.value.param == "store"
    database = Database(str(tmp_path / "new"), 100)
    database._connection.execute("PRAGMA user_version = 7")
    database.close()
    with pytest.raises(ConfigError, match="version 7"):
        Store(StoreLimits(path=str(tmp_path / "new")))


def ask(client: openai.OpenAI, **given: object) -> openai.types.responses.Response:
    answer = client.responses.create(model="pyengine-demo", input="Hi", **given)  # type: ignore[call-overload]
    assert isinstance(answer, openai.types.responses.Response)
    return answer


# An answer of 1,500 tokens takes longer than anything here.
STEADY = ("--port", "0", "--device", "simulated", "--simulated-step-ms", "40")


@pytest.mark.slow
@pytest.mark.parametrize("path", [None, "store"])
def test_several_workers_have_one_store(tmp_path: Path, path: str | None) -> None:
    given = () if path is None else ("--store", str(tmp_path / path))
    with served(*STEADY, "--workers", "2", *given, cwd=tmp_path) as server:
        url = server.url()
        made = ask(client_of(url), max_output_tokens=5)
        # Each client has a connection of its own, which the kernel gives to one of the workers.
        for _ in range(8):
            assert client_of(url).responses.retrieve(made.id).id == made.id
        long = {"max_output_tokens": 1500, "extra_body": {"ignore_eos": True}}
        jobs = [ask(client_of(url), background=True, **long).id for _ in range(4)]
        for job in jobs:
            events = client_of(url).responses.retrieve(job, stream=True)
            assert next(iter(events)).type == "response.created"
            assert client_of(url).responses.cancel(job).status == "cancelled"
            assert [event.type for event in events][-1] == "response.incomplete"
        assert re.search(
            r'^pyengine_store_objects{kind="response",.*} 5\.0$',
            httpx.get(f"{url}/metrics").text,
            re.MULTILINE,
        )
    if path is not None:
        with served(*STEADY, *given) as server:
            assert client_of(server.url()).responses.retrieve(made.id).id == made.id
