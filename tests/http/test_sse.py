"""Chunks are JSON whatever the text, and what has piled up is written at once."""

import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyengine.completion import Update, Usage
from pyengine.http.limits import Limits
from pyengine.http.openai.completions.chunks import DONE, ChatChunks, CompletionChunks
from pyengine.http.streams import sse
from pyengine.logprobs import TokenLogprob
from pyengine.request.options import RequestOptions
from pyengine.sampling import SamplingParams
from tests.http.fake_engine import FakeEngine
from tests.http.stream_fields import stream_fields

USAGE = Usage(3, 1, 2)
ENCODABLE = st.characters(exclude_categories=["Cs"])


@given(
    st.text(ENCODABLE, min_size=1),
    st.text(ENCODABLE),
    st.sampled_from([None, "stop", "length"]),
    st.booleans(),
)
def test_any_text_and_model(text: str, model: str, finish: Any, usage: bool) -> None:
    for kind in (ChatChunks, CompletionChunks):
        chunks = kind(stream_fields("id-1", 7, model, usage=usage))
        update = Update(text, [], finish, None, None, USAGE)
        data = chunks.first(0, update) + chunks.update(4, update) + chunks.last([USAGE])
        events = data.decode().split("\n\n")
        assert events.pop() == ""
        assert events.pop() == "data: [DONE]"
        made = [json.loads(event.removeprefix("data: ")) for event in events]
        assert all(chunk["model"] == model and chunk["created"] == 7 for chunk in made)
        if usage:
            assert made.pop()["usage"]["total_tokens"] == 5
        choices = [chunk["choices"][0] for chunk in made]
        read = [c.get("text") or c.get("delta", {}).get("content") for c in choices]
        assert "".join(piece or "" for piece in read) == text
        assert choices[-1]["finish_reason"] == finish


@given(st.text(ENCODABLE), st.text(ENCODABLE), st.integers(0, 127), st.booleans())
def test_text_alone_is_encoded_as_in_any_update(
    text: str, model: str, index: int, usage: bool
) -> None:
    for kind, piece in (
        (ChatChunks, {"delta": {"content": text}}),
        (CompletionChunks, {"text": text}),
    ):
        chunks = kind(stream_fields("id-1", 7, model, usage=usage))
        encode = chunks.text_encoder(index)
        assert encode is not None
        choice = {"index": index, **piece, "logprobs": None, "finish_reason": None}
        whole = {"id": "id-1", "object": kind.kind, "created": 7, "model": model}
        whole["choices"] = [choice]
        if usage:
            whole["usage"] = None
        assert encode(text) == b"data: " + msgspec.json.encode(whole) + b"\n\n"
        update = Update(text, [], None, None, None, USAGE)
        assert chunks.update(index, update) == (encode(text) if text else b"")


@pytest.mark.parametrize("kind", [ChatChunks, CompletionChunks])
def test_chunks_that_count_are_made_of_updates(kind: Any) -> None:
    chunks = kind(stream_fields("id-1", 7, "m", usage=True, so_far=True))
    assert chunks.text_encoder(0) is None


@pytest.mark.parametrize("kind", [ChatChunks, CompletionChunks])
def test_tokens_that_come_after_their_text_are_told_of(kind: Any) -> None:
    entry = TokenLogprob(5, "a", b"a", -0.5, 0, ())
    data: bytes = kind(stream_fields("id-1", 7, "m")).update(
        0, Update("", [5], None, None, None, USAGE, logprobs=(entry,))
    )
    (choice,) = json.loads(data.removeprefix(b"data: "))["choices"]
    told = choice["logprobs"]
    assert choice["finish_reason"] is None
    assert told.get("tokens") == ["a"] or [each["token"] for each in told["content"]] == ["a"]


@dataclass
class _Transport:
    writes: list[bytes] = field(default_factory=list)

    async def send_bytes(self, data: bytes) -> None:
        self.writes.append(data)


@pytest.mark.parametrize("streams", [1, 3])
async def test_every_choice_is_written_whole(streams: int) -> None:
    engine = FakeEngine(answer="abc")
    transport = _Transport()
    proto = SimpleNamespace(response_stream=lambda status, headers: transport)
    exchange: Any = SimpleNamespace(
        service=SimpleNamespace(engine=engine, limits=Limits()),
        proto=proto,
        began=False,
        request_id="r",
        headers=lambda content_type: [("content-type", content_type)],
        explain=lambda e: e,
    )
    generations: list[Any] = [
        engine.begin([5], SamplingParams(), RequestOptions()) for _ in range(streams)
    ]
    fields = stream_fields("id", 1, "m", usage=True)
    await sse.stream(exchange, generations, CompletionChunks(fields))
    assert exchange.began
    # One write a round, however many streams; and one for the end.
    assert len(transport.writes) <= 3 + 2
    assert transport.writes[-1].endswith(DONE)
    text = b"".join(transport.writes).decode()
    for index in range(streams):
        assert text.count(f'"index":{index},') == 3
