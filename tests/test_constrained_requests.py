"""Requests whose answers follow a grammar, through all that may happen to a request."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from pyengine import AsyncEngine, SamplingParams
from pyengine.errors import InvalidGrammarError, InvalidRequestError, RequestAbortedError
from pyengine.grammar import (
    Grammar,
    any_of,
    choice,
    ebnf,
    free_text,
    json_object,
    json_schema,
    json_value,
    lark,
    optional,
    regex,
    repeat,
    sequence,
    structural_tag,
    text,
)
from pyengine.placement.process import ProcessPlacement
from tests.answers import answers, assert_nothing_is_left, begins, matches
from tests.schemas import SCHEMAS
from tests.schemas.checking import check, parsed

QUESTION = [{"role": "user", "content": "Show me something."}]
SMALL: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
}
SMALL["additionalProperties"] = False

TAG = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["<f"],
        "tags": [
            {
                "begin": "<f>",
                "content": {"type": "json_schema", "json_schema": SMALL},
                "end": "</f>",
            }
        ],
        "at_least_one": True,
        "stop_after_first": True,
    },
}

GRAMMARS: dict[str, Grammar] = {
    "date": regex("[12][0-9]{3}-(0[1-9]|1[0-2])"),
    "words": regex("(?:[a-z]{1,6} ){2,4}[a-z]{1,6}\\."),
    "choice": choice(["yes", "no", "yes, but no", "né"]),
    "sum": ebnf('root ::= term (" + " term){1,3}\nterm ::= [1-9] [0-9]{0,2} | "(" root ")"'),
    "brackets": lark('start: "<" start? ">" | "[" start "]"'),
    "call": lark(
        'start: NAME "(" (NUMBER ("," NUMBER)*)? ")"\nNAME: /[a-z]{1,5}/\nNUMBER: /[0-9]/'
    ),
    "tag": structural_tag(TAG),
    "any object": json_object(),
    "any value": json_value(whitespace="compact"),
    "marked": sequence(text("<<"), free_text([">>"]), text(">>")),
    "several": repeat(choice(["a", "bc"]), min=2, max=5, separator=text(", ")),
    "either": any_of(regex("[0-9]{1,3}"), sequence(text("#"), optional(text("!")), json_value())),
}


@pytest.fixture
async def engine() -> AsyncIterator[AsyncEngine]:
    async with AsyncEngine(mode="server", max_sequences=64) as engine:
        yield engine


def drawn(seed: int, **params: Any) -> SamplingParams:
    """Temperature 1, and a seed."""
    return SamplingParams(**{"seed": seed, "max_tokens": 150, **params})


async def test_a_budget_below_the_shortest_answer_is_refused(engine: AsyncEngine) -> None:
    items = {"type": "array", "items": {"type": "integer"}, "minItems": 40}
    short, grammar = drawn(1, max_tokens=20), json_schema(items)
    with pytest.raises(
        InvalidRequestError, match=r"shortest answer .* has \d+ tokens, but only 20"
    ):
        await engine.chat(QUESTION, short, grammar=grammar, close_grammar=True)
    assert (await engine.chat(QUESTION, short, grammar=grammar)).finish_reason == "length"


async def test_every_kind_of_grammar_is_kept(engine: AsyncEngine) -> None:
    asked = [(name, seed) for name in GRAMMARS for seed in range(10)]
    given = await answers(
        engine.chat(QUESTION, drawn(seed), grammar=GRAMMARS[name], close_grammar=True)
        for name, seed in asked
    )
    for (name, _), answer in zip(asked, given, strict=True):
        assert answer.finish_reason == "stop", (name, answer.text)
        assert matches(GRAMMARS[name], answer.text), (name, answer.text)
    # They are drawn, not always the same.
    assert len({(name, a.text) for (name, _), a in zip(asked, given, strict=True)}) > len(asked) / 2
    await assert_nothing_is_left(engine)


async def test_a_stop_string_that_is_part_of_the_answer(engine: AsyncEngine) -> None:
    grammar = sequence(text("first, second"), regex(", [a-z]{3}"))
    answer = await engine.chat(QUESTION, drawn(1, stop=(", sec",)), grammar=grammar)
    assert (answer.text, answer.stop_string) == ("first", ", sec")
    kept = drawn(1, stop=(", sec",), include_stop=True)
    answer = await engine.chat(QUESTION, kept, grammar=grammar)
    assert answer.text == "first, sec"
    await assert_nothing_is_left(engine)


async def test_min_tokens_and_ignore_eos_do_not_leave_the_grammar(engine: AsyncEngine) -> None:
    grammar = choice(["yes", "no", "yes, but no"])
    longer = await engine.chat(QUESTION, drawn(1, min_tokens=20, max_tokens=40), grammar=grammar)
    on_and_on = await engine.chat(QUESTION, drawn(2, ignore_eos=True), grammar=grammar)
    for answer in (longer, on_and_on):
        assert answer.finish_reason == "stop"
        assert matches(grammar, answer.text)
    repeated = repeat(text("a "), min=1)
    answer = await engine.chat(
        QUESTION, drawn(3, min_tokens=12, max_tokens=40), grammar=repeated, close_grammar=True
    )
    assert answer.usage.completion_tokens >= 12
    assert re.fullmatch("(a )+", answer.text)
    await assert_nothing_is_left(engine)


async def test_a_seed_gives_the_same_answer_in_any_company(engine: AsyncEngine) -> None:
    def ask(name: str, seed: int) -> Any:
        return engine.chat(QUESTION, drawn(seed), grammar=json_schema(SCHEMAS[name]))

    alone = [(await ask(name, seed)).token_ids for seed, name in enumerate(list(SCHEMAS)[:6])]
    together = await answers(ask(name, seed % 6) for seed, name in enumerate(list(SCHEMAS)[:6] * 4))
    assert [answer.token_ids for answer in together] == alone * 4


async def test_speculation_changes_no_answer() -> None:
    grammars = [json_schema(schema) for schema in SCHEMAS.values()]
    grammars += GRAMMARS.values()
    params = SamplingParams(temperature=0, max_tokens=64)
    given = []
    for speculation in ((), ("forced", "ngram"), None):
        # Where drafts depend on how long steps take, a busy machine may draft none.
        async with AsyncEngine(
            mode="server", max_sequences=64, speculation=speculation, _adaptive_drafts=False
        ) as engine:
            found = await answers(engine.chat(QUESTION, params, grammar=each) for each in grammars)
            given.append([answer.token_ids for answer in found])
            drafted = sum(answer.usage.accepted_drafts for answer in found)
            assert bool(drafted) == (speculation != ())
    assert given[0] == given[1] == given[2]


@pytest.mark.slow
async def test_answers_go_on_over_kill_9_of_the_engine() -> None:
    names = [name for name in SCHEMAS if name not in ("anything", "open object")][:24]

    def ask(engine: AsyncEngine, seed: int, name: str) -> Any:
        params = drawn(seed, max_tokens=240)
        return engine.chat(QUESTION, params, grammar=json_schema(SCHEMAS[name]), close_grammar=True)

    async with AsyncEngine(mode="server", placement="process", speculation=()) as engine:
        running = [ask(engine, seed, name) for seed, name in enumerate(names)]
        begun = [await anext(generation) for generation in running]
        placement = engine.placement
        assert isinstance(placement, ProcessPlacement)
        assert placement.child is not None
        before = placement.child.process.pid
        os.kill(before, signal.SIGKILL)
        given = await asyncio.gather(*running)
        assert placement.child.process.pid != before
        await assert_nothing_is_left(engine)
    assert any(update.finish_reason is None for update in begun)
    # Where an answer begins to be closed depends on time; what it says is whole all the same.
    for name, answer in zip(names, given, strict=True):
        check(name, answer.text)


UNENFORCEABLE = {
    "type": "object",
    "properties": {"n": {"type": "string", "maxLength": 8, "pattern": r"^(.)\1$"}},
    "required": ["n"],
    "additionalProperties": False,
}


async def test_unenforced_keywords_are_warned_of_where_allowed(engine: AsyncEngine) -> None:
    grammar = json_schema(UNENFORCEABLE, unenforceable="ignore")
    for _ in range(2):  # compiled, then from the cache
        updates = [
            update
            async for update in engine.chat(QUESTION, drawn(1), grammar=grammar, close_grammar=True)
        ]
        warnings = [warning for update in updates for warning in update.warnings]
        assert len(warnings) == 1
        assert "pattern" in warnings[0]
        assert "/properties/n" in warnings[0]
        assert set(parsed("".join(update.text for update in updates))) == {"n"}


async def refusals(generations: Iterable[Any]) -> list[str]:
    """The messages with which every one of them is refused."""
    found = await asyncio.gather(*generations, return_exceptions=True)
    messages = [each.message for each in found if isinstance(each, InvalidGrammarError)]
    assert len(messages) == len(found), found
    return messages


async def test_a_refusal_names_keyword_and_path_every_time(engine: AsyncEngine) -> None:
    grammar = json_schema(UNENFORCEABLE)
    together = await refusals(engine.chat(QUESTION, grammar=grammar) for _ in range(2))
    later = await refusals([engine.chat(QUESTION, grammar=grammar)])
    for message in together + later:
        assert "pattern" in message
        assert "#/properties/n" in message
    figures = await engine.report()
    assert figures["grammar_refusals"] == 1
    assert figures["grammar_cache_hits"] >= 1
    await assert_nothing_is_left(engine)


async def test_one_that_leaves_while_its_grammar_compiles_leaves_nothing(
    engine: AsyncEngine,
) -> None:
    # Large enough that its compilation has hardly begun when the abort comes.
    large = choice([f"{number:x} of many" for number in range(20_000)])
    running = [engine.chat(QUESTION, grammar=large) for _ in range(3)]
    while not (await engine.report())["compiling"]:
        pass
    for generation in running:
        generation.abort()
    for generation in running:
        with pytest.raises(RequestAbortedError):
            await generation
    await assert_nothing_is_left(engine)
    assert (await engine.report())["grammar_cancelled"] == 1
    # And it can be asked for again.
    answer = await engine.chat(QUESTION, drawn(1), grammar=large)
    assert answer.text.endswith(" of many")
    assert begins(large, answer.text)
    await assert_nothing_is_left(engine)
