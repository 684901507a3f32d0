"""``GET /debug/profile?seconds=N``: where the time of the running engine goes, over N seconds.

The answer is the report of ``pyengine profile``; with ``spans=1`` the spans are beside it, packed
as :data:`pyengine.telemetry.spans.SPAN` and in base64, with samples of the stats, for a trace.

``GET /debug/record?since=N``: what ended since the last such request, for ``pyengine record``; the
first begins the recording.
"""

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import msgspec

from pyengine.errors import InvalidRequestError, OverloadedError

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

MAX_SECONDS = 60.0
# About as many spans as a busy engine has in a minute; bounds the size of the answer.
MAX_SPANS = 200_000


class ProfileAnswer(msgspec.Struct):
    """The body of the answer."""

    report: msgspec.Raw
    spans: bytes
    samples: msgspec.Raw


async def profile(exchange: "Exchange") -> None:
    """Profile the engine for ``seconds`` (5), for one client at a time."""
    from pyengine.profiling.observe import observe
    from pyengine.profiling.report import ProfileReport

    engine = exchange.service.require_ready()
    query = parse_qs(exchange.scope.query_string)
    seconds = _seconds(query.get("seconds", ["5"])[-1])
    wanted = query.get("spans", ["0"])[-1] == "1"
    if exchange.service.watching.locked():
        raise OverloadedError("Another client profiles the engine; try again in a moment.")
    async with exchange.service.watching:
        observation = await observe(engine, lambda: asyncio.sleep(seconds), sampled=wanted)
    setup = {"model": engine.model_name, "seconds": seconds}
    report = msgspec.json.encode(ProfileReport.of(observation, setup))
    spans = observation.spans[-MAX_SPANS:].tobytes() if wanted else b""
    samples = msgspec.json.encode(observation.samples)
    answer = ProfileAnswer(msgspec.Raw(report), spans, msgspec.Raw(samples))
    exchange.reply(msgspec.json.encode(answer))


async def record(exchange: "Exchange") -> None:
    """Give what was recorded, and the waits of clients from the span number ``since`` on."""
    import numpy as np

    from pyengine._core import Stage
    from pyengine.messages import Recorded
    from pyengine.profiling.observe import Sample
    from pyengine.profiling.recording import RecordAnswer
    from pyengine.telemetry.spans import SPAN

    engine = exchange.service.require_ready()
    since = parse_qs(exchange.scope.query_string).get("since", [""])[-1]
    if since and not (since.isdecimal() and len(since) < 20):
        raise InvalidRequestError(f"'since' must be a number, not {since[:100]!r}.", param="since")
    report = await engine.metrics(recorded=True)
    recorded = msgspec.msgpack.decode(report.recorded, type=Recorded)
    packed, number = engine.recorder.read(int(since) if since else engine.recorder.recorded)
    spans = np.frombuffer(packed, SPAN)
    waits = spans[np.isin(spans["stage"], [int(Stage.FIRST_TOKEN), int(Stage.NEXT_TOKEN)])]
    running = report.stats["running"] + report.stats["waiting"]
    accepted = Sample(0, report.stats).accepted_drafts
    answer = RecordAnswer(recorded, waits.tobytes(), number, running, accepted, engine.info)
    exchange.reply(msgspec.json.encode(answer))


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= MAX_SECONDS:
        raise InvalidRequestError(
            f"'seconds' must be over 0 and at most {MAX_SECONDS:g}, not {text[:100]!r}.",
            param="seconds",
        )
    return seconds
