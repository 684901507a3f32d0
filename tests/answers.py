"""What tests of constrained answers share: reading answers, and looking at what is left."""

import asyncio
from collections.abc import Iterable
from functools import cache

from pyengine import AsyncEngine
from pyengine._core import CompiledGrammar, GrammarContext, compile_grammar
from pyengine.chat.answer import ChatAnswer
from pyengine.chat.generation import ChatGeneration
from pyengine.demo import MODEL_PATH
from pyengine.grammar import Grammar
from pyengine.tokenizer import Tokenizer

# Far more than any grammar here needs, even beside other work: it must never be the limit.
PATIENCE = 120.0


async def streamed(generation: ChatGeneration) -> ChatAnswer:
    """The answer as a stream of updates put together: nothing is lost, and one is the last."""
    updates = [update async for update in generation]
    answer = await generation
    assert "".join(update.text for update in updates) == answer.text
    assert [token for update in updates for token in update.token_ids] == answer.token_ids
    assert [u.finish_reason is not None for u in updates] == [False] * (len(updates) - 1) + [True]
    return answer


async def whole(generation: ChatGeneration) -> ChatAnswer:
    """The answer, awaited."""
    return await generation


async def answers(generations: Iterable[ChatGeneration]) -> list[ChatAnswer]:
    """All of them, every other one as a stream."""
    reading = [
        streamed(generation) if index % 2 else whole(generation)
        for index, generation in enumerate(generations)
    ]
    return await asyncio.gather(*reading)


async def settled(engine: AsyncEngine) -> dict[str, int]:
    """The engine's report when no request is left and no step is in flight."""
    await engine.drained()
    while (report := await engine.report())["running"] + report["in_flight"]:
        pass  # each report is an answer from the scheduler, a step later
    return report


async def assert_nothing_is_left(engine: AsyncEngine) -> dict[str, int]:
    """No request is left, none is being compiled for, every block is free or cached; the report."""
    report = await settled(engine)
    assert report["waiting"] == report["held"] == report["compiling"] == 0
    assert report["free"] + report["cached"] == report["num_blocks"]
    return report


@cache
def tokenizer() -> Tokenizer:
    """The demo model's."""
    return Tokenizer.from_folder(MODEL_PATH)


@cache
def context() -> GrammarContext:
    """For grammars over the demo model's tokens."""
    ends = list(tokenizer().eos_token_ids)
    return GrammarContext.from_tokenizer_json(tokenizer().tokenizer_json, ends, 2048)


@cache
def compiled(grammar: Grammar) -> CompiledGrammar:
    """A grammar for the demo model's tokens."""
    return compile_grammar(context(), grammar.description(), PATIENCE)


def begins(grammar: Grammar, text: str) -> bool:
    """Whether some text of the grammar begins with ``text``."""
    state = compiled(grammar).start()
    ids = tokenizer().encode(text, add_special_tokens=False)
    return all(state.advance(token) for token in ids)


def matches(grammar: Grammar, text: str) -> bool:
    """Whether ``text`` is one of the grammar."""
    state = compiled(grammar).start()
    ids = tokenizer().encode(text, add_special_tokens=False)
    return all(state.advance(token) for token in [*ids, tokenizer().eos_token_ids[0]])
