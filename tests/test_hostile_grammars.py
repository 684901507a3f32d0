"""Grammars made to hurt: each is refused or works within its time, while other streams go on."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from pyengine import AsyncEngine, SamplingParams
from pyengine.errors import InvalidRequestError, OverloadedError
from pyengine.grammar import Grammar, choice, ebnf, json_schema, lark, regex, repeat, text
from tests.answers import assert_nothing_is_left
from tests.hostile_grammars import (
    chain,
    conditions,
    counted,
    exclusive,
    laughs,
    nested,
    outcome,
    product,
    remembering,
    unique,
    wide,
)

STREAMS = 100
TIMEOUT_S = 0.5
STREAM = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)


PAIR = {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}
LOOKING_BACK = [{"pattern": f".*{letter}.{{30}}$"} for letter in "abcdefgh"]
HUGE = {"type": "string", "minLength": 10**9, "maxLength": 2 * 10**9}
EXTREME = {"type": "number", "multipleOf": 1e-300, "minimum": -1e300, "maximum": 1e300}

HOSTILE: dict[str, Callable[[], Grammar]] = {
    "nested": lambda: json_schema(nested(90)),
    "too nested": lambda: json_schema(nested(5000, most=5000)),
    "nested text": lambda: json_schema('{"items":' * 100_000),
    "enum of 100,000": lambda: json_schema({"enum": [str(at) for at in range(100_000)]}),
    "choice of 100,000": lambda: choice(str(at) for at in range(100_000)),
    "2 MB": lambda: json_schema({"enum": ["x" * 100 + str(at) for at in range(20_000)]}),
    "wide": lambda: json_schema(wide(1000)),
    "remembering": lambda: remembering(320),
    "counted": lambda: counted(999),
    "ambiguous": lambda: regex("((x+x+)+y?)+"),
    "patterns that look back": lambda: json_schema({"type": "string", "allOf": LOOKING_BACK}),
    "itself": lambda: json_schema({"$ref": "#"}),
    "each other": lambda: json_schema({"$defs": PAIR, "$ref": "#/$defs/a"}),
    "chain": lambda: json_schema(chain(5000)),
    "product": lambda: json_schema(product(40)),
    "conditions": lambda: json_schema(conditions(40)),
    "permutations": lambda: json_schema(unique(100)),
    "exclusive": lambda: json_schema(exclusive(200)),
    "huge string": lambda: json_schema(HUGE),
    "huge array": lambda: json_schema({"type": "array", "minItems": 10**9}),
    "extreme numbers": lambda: json_schema(EXTREME),
    "billion laughs": lambda: laughs(680),
    "repeated repetition": lambda: ebnf('root ::= (("a"{1,999}){1,999}){1,999}'),
    "groups": lambda: ebnf("root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000),
    "left recursion": lambda: ebnf('root ::= root root root | root "a" | "a" | ""'),
    "rules": lambda: lark("start: r0\n" + "".join(f'r{n}: "a" r{n + 1}\n' for n in range(20_000))),
    "repeats": lambda: repeat(repeat(text("a"), min=9999), min=9999),
}


class Streams:
    """Streams without end, and how many tokens each has got."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self.tokens = [0] * STREAMS
        self.over = False

    async def read(self, number: int) -> None:
        while not self.over:
            async for update in self.engine.generate([number + 300] * 8, STREAM):
                self.tokens[number] += len(update.token_ids)
                if self.over:
                    break

    async def all_go_on(self) -> None:
        """Return once every stream has got more than now."""
        before = list(self.tokens)
        while any(now == then for now, then in zip(self.tokens, before, strict=True)):
            await self.engine.report()


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_each_is_refused_or_works_while_a_hundred_streams_go_on() -> None:
    engine = AsyncEngine(
        device="simulated",
        simulated_step_ms=1.0,
        mode="server",
        max_sequences=STREAMS + 4,
        grammar_timeout_s=TIMEOUT_S,
    )
    async with engine:
        streams = Streams(engine)
        reading = [asyncio.create_task(streams.read(number)) for number in range(STREAMS)]
        await streams.all_go_on()
        ends: dict[str, str] = {}
        for at, (name, make) in enumerate(HOSTILE.items()):
            begun, before = (await engine.report())["steps"], list(streams.tokens)
            ends[name] = await outcome(engine, make, close=at % 2 == 0)
            if "takes longer" in ends[name]:
                # All the while there were steps, and every stream had its part in them.
                assert (await engine.report())["steps"] > begun + 1
                assert all(n > b for n, b in zip(streams.tokens, before, strict=True)), name
            await streams.all_go_on()
        again = {name: await outcome(engine, make, False) for name, make in HOSTILE.items()}
        streams.over = True
        await asyncio.gather(*reading)
        report = await engine.report()
        await assert_nothing_is_left(engine)
    # Refused in words, or written under; and the second time the same comes of it, if time
    # allows. What need not be closed is written where its shortest end is not found.
    works = {name: end in ("stop", "length") for name, end in ends.items()}
    assert all(works[name] or " " in end for name, end in ends.items()), ends
    for name in HOSTILE:
        both = (ends[name], again[name])
        excused = ("takes longer", "still being compiled", "cannot be closed")
        if not any(said in end for end in both for said in excused):
            assert (again[name] in ("stop", "length")) == works[name], (name, both)
    assert 3 <= sum(works.values()) < len(HOSTILE)
    assert report["grammar_timeouts"] > 0
    assert report["finished_error"] == 0


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_client_with_too_many_is_overloaded_and_the_others_are_served() -> None:
    """Their compilations take all their time; another client's quick ones do not wait for them."""
    slow = [exclusive(200) | {"title": str(at)} for at in range(400)]
    answer = SamplingParams(max_tokens=4)

    async def ask(schema: dict[str, Any], tenant: str) -> str:
        try:
            grammar = json_schema(schema)
            given = engine.generate("Go", answer, grammar=grammar, tenant=tenant)
            return (await given).finish_reason
        except OverloadedError as error:
            return f"{error.status}, {error.retry_after} s: {error.message}"
        except InvalidRequestError as error:
            return error.message

    engine = AsyncEngine(
        device="simulated", simulated_step_ms=1.0, mode="server", grammar_timeout_s=TIMEOUT_S
    )
    async with engine:
        many = asyncio.gather(*(ask(schema, "many") for schema in slow))
        report = await engine.report()
        while report["grammar_queue"] == 0:
            report = await engine.report()
        for at in range(8):
            end = await ask({"type": "object", "maxProperties": at + 1}, "few")
            while "still being compiled" in end:  # on a busy machine
                end = await ask({"type": "object", "maxProperties": at + 1}, "few")
            assert end in ("stop", "length")
        ends = await many
        await assert_nothing_is_left(engine)
    refused = "503, 1 s: too many grammars wait to be compiled; try again later"
    assert ends.count(refused) >= len(slow) - 256
    said = ("takes longer", "cannot be", "still being compiled")
    assert any(each in end for end in ends for each in said)
