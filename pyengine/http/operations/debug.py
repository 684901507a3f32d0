"""``GET /debug/profile?seconds=N``: where the time of the running engine goes, over N seconds.

The answer is the report of ``pyengine profile``; with ``spans=1`` the spans are beside it, packed
as :data:`pyengine.telemetry.spans.SPAN` and in base64, with samples of the stats, for a trace.

``GET /debug/record?since=N``: what ended since the last such request, for ``pyengine record``; the
first begins the recording.
"""

import asyncio
from typing import TYPE_CHECKING, Annotated

import msgspec

from pyengine.errors import OverloadedError
from pyengine.http.query import read_query

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

# About as many spans as a busy engine has in a minute; bounds the size of the answer.
MAX_SPANS = 200_000


class ProfileQuery(msgspec.Struct, forbid_unknown_fields=True):
    """How the engine is watched.

    Attributes:
        seconds: How long.
        spans: Whether the answer has the spans too.
    """

    seconds: Annotated[float, msgspec.Meta(gt=0, le=60)] = 5.0
    spans: bool = False


class RecordQuery(msgspec.Struct, forbid_unknown_fields=True):
    """What is wanted of the recording.

    Attributes:
        since: Number of the first span; without it, the recording begins.
    """

    since: Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)] | None = None


class ProfileAnswer(msgspec.Struct):
    """The body of the answer."""

    report: msgspec.Raw
    spans: bytes
    samples: msgspec.Raw


async def profile(exchange: "Exchange") -> None:
    """Watch the engine for one client at a time, and answer where its time went."""
    from pyengine.profiling.observe import observe
    from pyengine.profiling.report import ProfileReport

    engine = exchange.service.require_ready()
    query = read_query(exchange.scope.query_string, ProfileQuery)
    seconds, wanted = query.seconds, query.spans
    if exchange.service.watching.locked():
        raise OverloadedError("Another client profiles the engine; try again in a moment.")
    async with exchange.service.watching:
        observation = await observe(engine, lambda: asyncio.sleep(seconds), sampled=wanted)
    setup = {"model": engine.model_name, "seconds": seconds}
    report = msgspec.json.encode(ProfileReport.of(observation, setup))
    spans = observation.spans[-MAX_SPANS:].tobytes() if wanted else b""
    samples = msgspec.json.encode(observation.samples)
    answer = ProfileAnswer(msgspec.Raw(report), spans, msgspec.Raw(samples))
    exchange.answer(answer)


async def record(exchange: "Exchange") -> None:
    """Give what ended since the last such request, and the waits of clients, for a recording."""
    import numpy as np

    from pyengine._core import Stage
    from pyengine.messages import Recorded
    from pyengine.profiling.recording import RecordAnswer
    from pyengine.telemetry.drafts import proposers
    from pyengine.telemetry.spans import SPAN

    engine = exchange.service.require_ready()
    since = read_query(exchange.scope.query_string, RecordQuery).since
    report = await engine.metrics(recorded=True)
    recorded = msgspec.msgpack.decode(report.recorded, type=Recorded)
    packed, number = engine.recorder.read(engine.recorder.recorded if since is None else since)
    spans = np.frombuffer(packed, SPAN)
    waits = spans[np.isin(spans["stage"], [int(Stage.FIRST_TOKEN), int(Stage.NEXT_TOKEN)])]
    running = report.stats["running"] + report.stats["waiting"]
    places = [place for drafts in proposers(report.stats) for place in drafts.positions]
    drafts = sum(place.reached for place in places), sum(place.accepted for place in places)
    answer = RecordAnswer(
        recorded, waits.tobytes(), number, running, drafts, engine.config.proposers, engine.info
    )
    exchange.answer(answer)
