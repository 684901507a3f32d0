"""What alternatives of one answer cost under a grammar, beside one answer alone."""

import asyncio
from time import process_time
from typing import Any

from pyengine import AsyncEngine, SamplingParams
from pyengine.grammar import json_schema

SCHEMA = {
    "type": "object",
    "properties": {
        "values": {"type": "array", "items": {"type": "integer"}, "minItems": 50, "maxItems": 50}
    },
    "required": ["values"],
    "additionalProperties": False,
}
QUESTION = [{"role": "user", "content": "Fifty numbers."}]
COUNTS = (1, 64)


async def ask(count: int) -> dict[str, Any]:
    """Asks a new engine for a number of alternatives, each the likeliest answer."""
    async with AsyncEngine(device="simulated", simulated_step_ms=8) as engine:
        grammar = json_schema(SCHEMA)
        params = SamplingParams(temperature=0, max_tokens=200)
        start = process_time()
        answers = await asyncio.gather(
            *(engine.chat(QUESTION, params, grammar=grammar) for _ in range(count))
        )
        cpu_ms = (process_time() - start) * 1e3
        report = await engine.report()
    return {
        "tokens": sum(len(answer.token_ids) for answer in answers),
        "cpu_ms": round(cpu_ms, 1),
        "masks_found": report["grammar_mask_hits"],
        "masks_made": report["grammar_mask_misses"],
        "mask_bytes": report["grammar_mask_bytes"],
    }


async def figures() -> dict[str, Any]:
    return {str(count): await ask(count) for count in COUNTS}
