"""What a Request actor keeps of what came."""

import asyncio
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyengine import AsyncEngine, SamplingParams
from pyengine.messages import Delta, RequestKey, Submit
from pyengine.request.request import RequestActor

TOKENS = 20_000


def _actor() -> RequestActor:
    key = RequestKey(0, 1)
    tokens = b"\1\0\0\0"
    return RequestActor(
        Submit(
            key=key,
            tokens=tokens,
            prompt_length=1,
            max_tokens=TOKENS,
            sampling=b"",
            skip_special_tokens=True,
            arrival_ns=1,
        )
    )


def _delta(text: str, tokens: tuple[int, ...], notice: str | None = None, **end: Any) -> Delta:
    made = Delta(1, text, tokens, end.get("finish"), None, None, 1, 0, len(tokens), 0)
    made.notice = notice
    return made


PIECES = st.lists(
    st.tuples(st.text(max_size=5), st.lists(st.integers(0, 2**32 - 1), max_size=3), st.booleans())
)


@given(PIECES)
async def test_updates_and_the_whole_are_what_came(
    pieces: list[tuple[str, list[int], bool]],
) -> None:
    actor = _actor()
    seen, read = [], 0
    for index, (text, tokens, reads) in enumerate(pieces):
        notice = "odd\nodder" if index == 0 else None
        actor.deliver(_delta(text, tuple(tokens), notice))
        if reads:
            seen.append(await actor.next_update())
            read = index + 1
    assert actor.continued().tokens[4:] == b"".join(
        token.to_bytes(4, "little") for _, tokens, _ in pieces for token in tokens
    )
    assert "".join(update.text for update in seen if update) == "".join(
        text for text, _, _ in pieces[:read]
    )
    actor.deliver(_delta("", (), finish="stop"))
    whole = await actor.completion()
    assert whole.text == "".join(text for text, _, _ in pieces)
    assert whole.token_ids == [token for _, tokens, _ in pieces for token in tokens]
    assert whole.warnings == (("odd", "odder") if pieces else ())
    assert (await actor.completion()) == whole


STEPS = st.lists(st.tuples(st.text(max_size=3), st.booleans(), st.booleans(), st.booleans()))


@given(STEPS, st.booleans())
async def test_text_alone_passes_the_task_that_reads(
    steps: list[tuple[str, bool, bool, bool]], ends_with_text: bool
) -> None:
    """Each step is a text, whether a notice comes with it, whether readers are told, and run."""
    actor, read, updates = _actor(), "", 0

    def sink(actor: RequestActor) -> None:
        nonlocal read
        text = actor.take_text()
        assert text
        assert not actor.ended
        read += text

    async def reader() -> None:
        nonlocal read, updates
        while (update := await actor.next_update()) is not None:
            read += update.text
            updates += 1

    actor.sink = sink
    reading = asyncio.create_task(reader())
    await asyncio.sleep(0)
    for number, (text, notice, shows, runs) in enumerate(steps):
        actor.deliver(_delta(text, (number,), f"odd {number}" if notice else None))
        if shows:
            actor.show()
            if not any(noted for _, noted, _, _ in steps):
                assert read == "".join(text for text, *_ in steps[: number + 1])
        if runs:
            await asyncio.sleep(0)
    actor.deliver(_delta("end" if ends_with_text else "", (), finish="stop"))
    actor.show()
    await reading
    text = "".join(text for text, *_ in steps) + "end" * ends_with_text
    assert read == text
    assert updates <= 1 + sum(notice for _, notice, _, _ in steps)
    whole = await actor.completion()
    assert whole.text == text
    assert whole.token_ids == list(range(len(steps)))
    assert whole.warnings == tuple(f"odd {n}" for n, (_, notice, *_) in enumerate(steps) if notice)


async def test_a_long_answer_is_a_few_bytes_a_token() -> None:
    actor = _actor()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(TOKENS):
            actor.deliver(_delta(f"w{number:04} ", (number + 1000,)))
            await actor.next_update()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / TOKENS < 32


async def test_a_sink_that_fails_ends_its_request_and_no_other() -> None:
    """As a parser would that has an error in it."""
    async with AsyncEngine(device="simulated", simulated_step_ms=0.5) as engine:
        params = SamplingParams(max_tokens=64, ignore_eos=True)
        broken, other = (engine.generate("Go on", params) for _ in range(2))
        await anext(broken)

        def fail(text: str) -> None:
            raise ZeroDivisionError(text)

        broken.pass_text(fail)
        with pytest.raises(ZeroDivisionError):
            await broken
        assert (await other).usage.completion_tokens == 64
        await engine.drained()
        report = await engine.report()
        assert report["held"] == report["running"] == 0
