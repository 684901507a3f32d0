"""What an answer cost, by the clock of the one who waited for it."""

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyengine.chat.answer import ChatUpdate
    from pyengine.completion import Update


class Stopwatch:
    """Times one answer: make it when the question is asked, then tell it every update."""

    def __init__(self) -> None:
        self.asked = time.perf_counter()
        self.first = 0.0
        self.last = 0.0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.first_tokens = 0  # tokens in the first update, which no decode step is timed for
        self.tokens = 0

    def see(self, update: "Update | ChatUpdate") -> None:
        """Take in an update."""
        self.last = time.perf_counter()
        self.prompt_tokens = update.usage.prompt_tokens
        self.cached_tokens = update.usage.cached_tokens
        self.tokens = update.usage.completion_tokens
        if not self.first and self.tokens:
            self.first, self.first_tokens = self.last, self.tokens

    def lines(self) -> dict[str, str]:
        """Name and value of each figure, ready to be shown, once there was a first token."""
        waited = self.first - self.asked
        fresh = self.prompt_tokens - self.cached_tokens
        return {
            "prompt": f"{self.prompt_tokens} tokens, {self.cached_tokens} of them cached",
            "answer": f"{self.tokens} tokens",
            "first token after": f"{waited * 1e3:.1f} ms",
            "prefill": _rate(fresh, waited),
            "decode": _rate(self.tokens - self.first_tokens, self.last - self.first),
        }


def _rate(tokens: int, seconds: float) -> str:
    return f"{tokens / seconds:.1f} tokens/s" if tokens and seconds > 0 else "-"
