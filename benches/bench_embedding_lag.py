"""How long a service's event loop waits while the engine in it prepares a long conversation.

A task of the loop asks to be woken every millisecond and notes how late it is, first alone and then
while ``engine.chat`` prepares and answers conversations of 200 messages and some 39,000 tokens of
Qwen2's, one after the other. On the simulated device, in both placements. The lag of the loop alone
is the machine's.

    python -m benches.bench_embedding_lag [--rounds N] [--tokenizer FILE] [--json PATH]
"""

import argparse
import asyncio
import time
from pathlib import Path

from benches.figures import json_option, write_json
from pyengine import AsyncEngine, SamplingParams
from pyengine.placement import PlacementName
from pyengine.profiling.vocabulary import with_tokenizer
from pyengine.settings.config import EngineConfig

TICK_S = 0.001
MESSAGES = 200
WORDS = 65
ONE_TOKEN = SamplingParams(max_tokens=1)
# The demo model's own template goes with its tokens alone.
TEMPLATE = """{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content | trim }}<|im_end|>
{% endfor %}<|im_start|>assistant
"""


def conversation(at: int) -> list[dict[str, str]]:
    """A conversation that shares no prefix with the others."""
    return [
        {
            "role": ("user", "assistant")[turn % 2],
            "content": " ".join(
                f"item {at} of {turn * WORDS + word}" for word in range(WORDS // 3)
            ),
        }
        for turn in range(MESSAGES - 1)
    ] + [{"role": "user", "content": "Which of them is the last?"}]


class Ticker:
    """A task that is woken every millisecond; how late, in milliseconds."""

    def __init__(self) -> None:
        self.late: list[float] = []

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            due = time.perf_counter() + TICK_S
            await asyncio.sleep(TICK_S)
            self.late.append(1000 * (time.perf_counter() - due))

    def figures(self) -> dict[str, float]:
        """Median, 99th percentile and maximum; forgets what it has."""
        late, self.late = sorted(self.late), []
        return {
            "p50_ms": late[len(late) // 2],
            "p99_ms": late[len(late) * 99 // 100],
            "longest_ms": late[-1],
        }


async def measure(placement: PlacementName, rounds: int, config: EngineConfig) -> dict[str, object]:
    """The lag alone and beside conversations."""
    async with AsyncEngine(config=config, placement=placement) as engine:
        await engine.chat(conversation(-1), ONE_TOKEN, chat_template=TEMPLATE)
        ticker = Ticker()
        ticking = asyncio.create_task(ticker.run())
        await asyncio.sleep(rounds * 0.1)
        alone = ticker.figures()
        tokens = 0
        for at in range(rounds):
            answer = await engine.chat(conversation(at), ONE_TOKEN, chat_template=TEMPLATE)
            tokens = answer.usage.prompt_tokens
        beside = ticker.figures()
        ticking.cancel()
    return {"prompt_tokens": tokens, "alone": alone, "beside": beside}


def main() -> None:
    """Print the figures of both placements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--tokenizer", type=Path, default=None, help="a tokenizer.json")
    json_option(parser)
    options = parser.parse_args()
    config = EngineConfig(device="simulated", max_context=65_536, num_blocks=16_384)
    found = {}
    with with_tokenizer(config, options.tokenizer) as made:
        for placement in ("thread", "process"):
            found[placement] = asyncio.run(measure(placement, options.rounds, made))
    if write_json(found, options.json):
        for placement, figures in found.items():
            print(placement, figures)


if __name__ == "__main__":
    main()
