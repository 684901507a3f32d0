"""The stats of one answer: token counts and speed, by the commits of its tokens."""

from dataclasses import dataclass

from pyengine.completion import Usage
from pyengine.messages import Report
from pyengine.telemetry import HistogramTotal

MS = 1e-6  # of a nanosecond


@dataclass(frozen=True)
class AnswerStats:
    """Stats of one answer that was alone with its engine.

    The times are those of the engine's histograms. A loop that reads an answer late finds many
    tokens at once, which by its own clock would have taken no time.

    Attributes:
        usage: Token counts of the answer.
        first_ns: From the request's arrival to the commit of its first token.
        steps_ns: From there to the commit of its last token.
        steps: Tokens after the first.
    """

    usage: Usage
    first_ns: int
    steps_ns: int
    steps: int

    @classmethod
    def between(cls, before: Report, after: Report, usage: Usage) -> "AnswerStats | None":
        """The stats of the one answer between two reports; None if it got no token."""
        first, firsts = _since(before, after, "time_to_first_token_ns")
        gaps, steps = _since(before, after, "inter_token_latency_ns")
        return cls(usage, first, gaps, steps) if firsts else None

    def lines(self) -> dict[str, str]:
        """Name and value of each, as text."""
        usage = self.usage
        fresh = usage.prompt_tokens - usage.cached_tokens
        return {
            "prompt": f"{usage.prompt_tokens} tokens, {usage.cached_tokens} of them cached",
            "answer": f"{usage.completion_tokens} tokens",
            "first token after": f"{self.first_ns * MS:.1f} ms",
            "prefill": _rate(fresh, self.first_ns),
            "decode": _rate(self.steps, self.steps_ns),
        }


def _since(before: Report, after: Report, name: str) -> tuple[int, int]:
    """Sum and number of the values that a histogram got between two reports."""
    nothing = HistogramTotal([], [], 0)
    then, now = (report.histograms.get(name, nothing) for report in (before, after))
    return now.sum - then.sum, now.count - then.count


def _rate(tokens: int, ns: int) -> str:
    return f"{tokens / ns * 1e9:.1f} tokens/s" if tokens and ns > 0 else "-"
