"""A logits processor: answers without a letter, from the demo model in this process.

The processor is a class of this file, given to the engine as an object. Behind an endpoint the
operator declares it by its path, and requests ask for it by name::

    PYTHONPATH=examples pyengine serve --logits-processors logits_processor:WithoutTokens
    curl localhost:8000/v1/completions -H 'content-type: application/json' \
        -d '{"prompt": "Paris is", "logits_processors": {"WithoutTokens": {"tokens": [278]}}}'
"""

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from pyengine import AsyncEngine, SamplingParams
from pyengine.logits_processors import LogitsRow


class WithoutTokens:
    """Makes the ``tokens`` of a request's arguments impossible."""

    def process(self, logits: Any, rows: Sequence[LogitsRow]) -> None:
        """Works on numpy's arrays and on torch's tensors alike."""
        for row in rows:
            logits[row.index, row.arguments["tokens"]] = -math.inf


async def main() -> None:
    """Ask the same with every letter, and without some."""
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    params = SamplingParams(temperature=0, max_tokens=30)
    async with AsyncEngine(logits_processors=[WithoutTokens()]) as engine:
        tokenizer = engine.tokenizer
        await tokenizer.load_bytes()
        spelled = [tokenizer.token_bytes(token) for token in range(engine.info.vocab_size)]
        for letter in ("", "e", "i"):
            tokens = [at for at, text in enumerate(spelled) if letter and letter.encode() in text]
            asked = {"WithoutTokens": {"tokens": tokens}}
            answer = await engine.chat(messages, params, logits_processors=asked)
            print(f"without {letter or 'nothing'}: {' '.join(answer.text.split())}")


if __name__ == "__main__":
    asyncio.run(main())
