"""What a Request actor keeps of what came."""

import tracemalloc
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pyengine.messages import Delta, RequestKey, Submit
from pyengine.request.request import RequestActor

TOKENS = 20_000


def _actor() -> RequestActor:
    key = RequestKey(0, 1)
    tokens = b"\1\0\0\0"
    return RequestActor(
        Submit(
            key=key, tokens=tokens, prompt_length=1, max_tokens=TOKENS, sampling=b"", arrival_ns=1
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
