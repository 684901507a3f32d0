"""What the tests of several replicas share: servers in processes, and many requests to them."""

import asyncio
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.programs import Server, served

SIMULATED = ("--device", "simulated", "--simulated-step-ms", "2")
SYSTEM_PROMPTS = 8
REQUESTS = 200


class Replicas:
    """``pyengine serve --replicas 2`` on simulated devices, with one store.

    Attributes:
        server: Its process.
        url: Where clients reach it.
        metrics_url: Its metrics.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.url = server.url()
        self.metrics_url = server.expect(r"  metrics +(\S+)")[1]

    def metrics(self) -> str:
        """What a scrape has."""
        return httpx.get(self.metrics_url, timeout=30).text

    def value(self, metric: str, **labels: str) -> float:
        """The sum of a metric's samples with the labels."""
        return value(self.metrics(), metric, **labels)

    def lives(self) -> list[tuple[str, str]]:
        """Number and URL of each life of a replica so far."""
        pattern = re.compile(r"replica (\d+): ready, .*(http://\S+)")
        return [
            (found[1], found[2]) for line in self.server.output if (found := pattern.search(line))
        ]


def value(exposition: str, metric: str, **labels: str) -> float:
    """The sum of a metric's samples with the labels."""
    wanted = [f'{name}="{text}"' for name, text in labels.items()]
    return sum(
        float(line.rpartition(" ")[2])
        for line in exposition.splitlines()
        if re.match(rf"{metric}[ {{]", line) and all(label in line for label in wanted)
    )


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    store = ("--store", str(tmp_path_factory.mktemp("store") / "store"))
    with served("--port", "0", "--replicas", "2", *SIMULATED, *store) as server:
        yield Replicas(server)
        assert server.end(signal.SIGTERM) == 0


@pytest.fixture(scope="module")
def alone() -> Iterator[str]:
    """The URL of one engine without a router."""
    with served("--port", "0", *SIMULATED) as server:
        yield server.url()


def question(number: int) -> dict[str, Any]:
    """A request under one of some system prompts of about 500 tokens."""
    kind = number % SYSTEM_PROMPTS
    system = f"You are assistant number {kind}. " + f"Rule {kind}: be brief. " * 60
    return {
        "model": "pyengine-demo",
        "max_tokens": 4,
        "temperature": 0,
        "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": f"Question {number}"},
        ],
    }


class Answers:
    """The outcome of many requests.

    Attributes:
        statuses: How many ended with each status; an exception counts under its name.
        prompt_tokens: Of all that were answered.
        cached_tokens: How many of them were cached.
    """

    def __init__(self) -> None:
        self.statuses: Counter[int | str] = Counter()
        self.prompt_tokens = 0
        self.cached_tokens = 0

    def add(self, answer: httpx.Response) -> None:
        self.statuses[answer.status_code] += 1
        if answer.status_code == 200:
            usage = answer.json()["usage"]
            self.prompt_tokens += usage["prompt_tokens"]
            self.cached_tokens += usage["prompt_tokens_details"]["cached_tokens"]

    @property
    def cached_share(self) -> float:
        return self.cached_tokens / self.prompt_tokens


async def ask_many(url: str, count: int = REQUESTS, at_once: int = 8) -> Answers:
    """Ask ``count`` questions, so many at a time."""
    answers, numbers = Answers(), iter(range(count))
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:

        async def one_client() -> None:
            for number in numbers:
                try:
                    answers.add(await client.post("/v1/chat/completions", json=question(number)))
                except httpx.HTTPError as error:
                    answers.statuses[type(error).__name__] += 1

        await asyncio.gather(*(one_client() for _ in range(at_once)))
    return answers


def children(pid: int) -> list[int]:
    """The processes that ``pid`` has started, and those that these have."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *children(child)]
    return found


def listener(url: str) -> int:
    """The process that listens at ``url``: of a replica, its server."""
    port = int(url.rpartition(":")[2])
    entry = re.compile(rf" *\d+: 0100007F:{port:04X} \S+ 0A (?:\S+ +){{5}}(\d+)")
    entries = map(entry.match, Path("/proc/net/tcp").read_text().splitlines())
    match = next(filter(None, entries), None)
    assert match, f"nothing listens at {url}"
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(link.readlink()) == f"socket:[{match[1]}]":
                return int(link.parts[2])
        except OSError:
            continue
    raise AssertionError(f"no process listens at {url}")
