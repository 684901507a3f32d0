"""A server's requests recorded without their text, and replayed."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import openai
import pytest
from click.testing import CliRunner

from pyengine import AsyncEngine
from pyengine.cli import main
from pyengine.errors import ConfigError
from pyengine.http.serving.server import HttpServer
from pyengine.model.step_model import StepModel, first_line
from pyengine.profiling.recording import Heading, RecordAnswer, Recording

SETTINGS: dict[str, Any] = {"device": "simulated", "simulated_step_ms": 1, "max_sequences": 8}
# No two of the first three blocks of 16 tokens are alike.
SHARED = list(range(300, 348))


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of three requests, two of which begin alike; the third is for a batch."""
    file = tmp_path_factory.mktemp("recording") / "day.jsonl"
    file.write_bytes(b"".join(asyncio.run(_recorded())))
    return file


async def _recorded(
    tokens: int | None = None, form: dict[str, Any] | None = None, **settings: Any
) -> list[bytes]:
    """A recording's lines; ``tokens`` is the length of each answer, in place of 5 and more, and
    ``form`` what it must look like."""
    engine = AsyncEngine(**SETTINGS | settings)
    server = HttpServer(engine, port=0)
    await server.start()
    try:
        await engine.start()
        async with (
            httpx.AsyncClient(base_url=server.url) as http,
            openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client,
        ):

            async def take(path: str) -> RecordAnswer:
                answer = (await http.get(path)).raise_for_status().content
                return msgspec.json.decode(answer, type=RecordAnswer)

            async def ask(prompt: list[int], tokens: int, **options: Any) -> None:
                await client.completions.create(
                    model="pyengine-demo", prompt=prompt, max_tokens=tokens,
                    extra_body={"ignore_eos": True, **(form or {}), **options}, temperature=0.5,
                )  # fmt: skip

            await ask([7, 8, 9], 2)  # before the recording
            recording = Recording(await take("/debug/record"))
            await ask([*SHARED, 400], tokens or 5)
            await ask([*SHARED, 401, 402], tokens or 6)
            await ask([500, *SHARED], tokens or 7, priority=3, top_k=40)
            recording.add(await take(recording.path))
            assert "3 requests" in recording.summary()
            assert (await take("/debug/record")).recorded.requests == []  # another client's
            with pytest.raises(ConfigError, match="another client"):
                recording.add(await take(recording.path))
            assert (await http.get("/debug/record?since=x")).status_code == 400
        return list(recording.lines())
    finally:
        await server.stop(0)
        await engine.close()


def test_a_recording_has_lengths_and_equal_beginnings_and_no_token(day: Path) -> None:
    heading, *rows = map(json.loads, day.read_text().splitlines())
    assert [(row["input_length"], row["output_length"], row["priority"]) for row in rows] == [
        (49, 5, 0), (50, 6, 0), (49, 7, 3),
    ]  # fmt: skip
    assert [row["hash_ids"] for row in rows] == [[0, 1, 2], [0, 1, 2], [3, 4, 5]]
    assert [row["sampling"] for row in rows] == [
        {"temperature": 0.5}, {"temperature": 0.5}, {"temperature": 0.5, "top_k": 40},
    ]  # fmt: skip
    moments = [row["timestamp"] for row in rows]
    assert moments == sorted(moments)
    assert not any(row["constrained"] for row in rows)
    assert set(rows[0]) == {
        "timestamp", "input_length", "output_length", "hash_ids", "priority", "sampling",
        "constrained",
    }  # fmt: skip
    assert heading["block"] == 16
    read = first_line(day, Heading)
    assert read.waits.first_token_ms is not None
    assert read.waits.first_token_ms.requests == 3
    assert read.step_model is not None
    assert read.step_model.overlap == 1
    assert (read.speculation, read.acceptance) == ((), 0.0)


def test_a_replay_drafts_as_the_server_did(tmp_path: Path) -> None:
    file = tmp_path / "day.jsonl"
    drafting: dict[str, Any] = {"speculation": ("ngram",), "simulated_acceptance": 0.7}
    file.write_bytes(b"".join(asyncio.run(_recorded(tokens=400, **drafting))))
    heading = first_line(file, Heading)
    assert heading.speculation == ("ngram",)
    assert 0 < heading.acceptance <= 1
    arguments = [
        "profile", "--replay", str(file), "--device", "simulated", "--placement", "thread",
        "--json", "-",
    ]  # fmt: skip
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["tokens"] == 3 * 400
    assert [drafts["proposer"] for drafts in report["drafts"]] == ["ngram"]
    assert report["drafts"][0]["accepted"] > 0


def test_answers_with_a_grammar_are_replayed_with_one(tmp_path: Path) -> None:
    file = tmp_path / "day.jsonl"
    form = {"structured_outputs": {"regex": "[a-z]{200}"}}
    file.write_bytes(b"".join(asyncio.run(_recorded(form=form))))
    _, *rows = map(json.loads, file.read_text().splitlines())
    assert [row["constrained"] for row in rows] == [True] * 3
    arguments = [
        "profile", "--replay", str(file), "--device", "simulated", "--placement", "thread",
        "--json", "-",
    ]  # fmt: skip
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["tokens"] == 5 + 6 + 7
    assert "grammar" in {row["stage"] for row in report["stages"]}


def test_a_recording_is_replayed_with_its_settings_and_others(day: Path) -> None:
    arguments = [
        "profile", "--replay", str(day), "--device", "simulated", "--placement", "thread",
        "--what-if", "max_sequences=1,replicas=2", "--json", "-",
    ]  # fmt: skip
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["setup"]["device"] == "simulated, recorded step times"
    assert report["setup"]["answered"] == 3
    assert report["tokens"] == 5 + 6 + 7
    assert report["cached_share"] == pytest.approx(48 / (49 + 50 + 49))
    columns = report["replays"]
    assert [column["name"] for column in columns] == [
        "recorded", "replayed", "max_sequences=1,replicas=2",
    ]  # fmt: skip
    assert [column["first_token_ms"]["requests"] for column in columns] == [3, 3, 3]


@pytest.mark.parametrize(("options", "why"), [
    (["--replay", "{day}", "--sequences", "4"], "--replay does not go with --sequences"),
    (["--what-if", "replicas=2"], "--what-if needs --replay"),
    (["--replay", "{day}", "--device", "simulated", "--what-if", "colour=2"], "colour=2"),
    (["--replay", "{day}", "--device", "simulated", "--what-if", "replicas=0"], "replicas=0"),
    (["--replay", __file__], "is no recording of `pyengine record`"),
])  # fmt: skip
def test_what_cannot_be_replayed_is_refused(day: Path, options: list[str], why: str) -> None:
    given = [option.format(day=day) for option in options]
    result = CliRunner().invoke(main, ["profile", "--placement", "thread", *given])
    assert result.exit_code != 0
    assert why in " ".join(result.output.split())


def test_step_times_are_fitted_from_steps() -> None:
    random = np.random.default_rng(0)
    rows, tokens, seen = (random.integers(1, most, 4000) for most in (64, 512, 50_000))
    times = (2e6 + 9e3 * rows + 7e3 * tokens + 20 * seen) * random.uniform(0.9, 1.1, 4000)
    columns = (rows, tokens, seen, times.astype(int))
    steps = list(zip(*(column.tolist() for column in columns), strict=True))
    model = StepModel.fitted(steps, overlap=1)
    assert model is not None
    assert model.costs_us == pytest.approx([2000, 9, 7, 0.02], rel=0.05)
    factors = np.array(model.spread)
    assert (factors.min(), factors.mean(), factors.max()) == pytest.approx((0.9, 1, 1.1), abs=0.02)
    assert model == StepModel.fitted(steps, overlap=1)
    assert StepModel.fitted([], overlap=1) is None


def test_the_command_says_what_it_cannot_reach(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["record", "http://127.0.0.1:9", str(tmp_path / "day.jsonl")])
    assert result.exit_code == 1
    assert "cannot measure http://127.0.0.1:9" in result.output
