"""One request, all the way: the story of the house.

A question goes from an ``await`` through the actors and back as streamed text, and leaves
nothing behind.
"""

from pyengine import AsyncEngine, SamplingParams

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


async def test_one_request() -> None:
    # The engine loads the demo model on a thread and starts its actors.
    async with AsyncEngine() as engine:
        # The Frontend renders the chat template, tokenizes, and sends Submit to the Scheduler.
        generation = engine.chat(QUESTION, SamplingParams(temperature=0, max_tokens=60))

        # The Scheduler admits it: its prompt is prefilled, then a token is decoded per step. The
        # Detokenizer turns tokens to text; each step's text reaches the Request actor as a delta,
        # and an update is all that came since the one before.
        updates = [update async for update in generation]
        assert "Paris" in "".join(update.text for update in updates)

        # The last update says why it ended and what it used.
        assert [update.finish_reason for update in updates[:-1]] == [None] * (len(updates) - 1)
        last = updates[-1]
        assert last.finish_reason == "stop"
        assert last.stop_token in engine.tokenizer.eos_token_ids
        assert last.usage.prompt_tokens == len(generation.prompt_token_ids)
        assert last.usage.completion_tokens == sum(len(update.token_ids) for update in updates)

        # Awaiting the same request gives the whole answer.
        whole = await generation
        assert whole.text == "".join(update.text for update in updates)

        # Asked again, the prompt's full blocks come from the prefix tree.
        again = await engine.chat(QUESTION, SamplingParams(temperature=0, max_tokens=60))
        assert again.text == whole.text
        assert again.usage.cached_tokens == (again.usage.prompt_tokens - 1) // 16 * 16 > 0

        # And nothing is left behind: every block is free or cached.
        report = await engine.report()
        assert report["held"] == report["running"] == report["waiting"] == 0
        assert report["free"] + report["cached"] == report["num_blocks"]
