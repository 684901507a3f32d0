"""What an answer cost, by the engine's own clock: when its tokens were committed, not when read."""

from dataclasses import dataclass

from pyengine.completion import Usage
from pyengine.messages import Report
from pyengine.telemetry import HistogramTotal

MS = 1e-6  # of a nanosecond


@dataclass(frozen=True)
class AnswerFigures:
    """Figures of one answer that was alone with its engine.

    The loop that reads an answer may be late, and then finds many tokens at once: by its clock they
    would have come in no time. So these are taken from what the engine has noted meanwhile.

    Attributes:
        usage: Its counts.
        first_ns: From its arrival to the commit of its first token.
        steps_ns: From there to the commit of its last.
        steps: Tokens after the first.
    """

    usage: Usage
    first_ns: int
    steps_ns: int
    steps: int

    @classmethod
    def between(cls, before: Report, after: Report, usage: Usage) -> "AnswerFigures | None":
        """Those of the one answer between two reports; None if it got no token."""
        first, firsts = _since(before, after, "time_to_first_token_ns")
        gaps, steps = _since(before, after, "inter_token_latency_ns")
        return cls(usage, first, gaps, steps) if firsts else None

    def lines(self) -> dict[str, str]:
        """Name and value of each, ready to be shown."""
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
    """Sum and number of the values that a histogram has got."""
    nothing = HistogramTotal([], [], 0)
    then, now = (report.histograms.get(name, nothing) for report in (before, after))
    return now.sum - then.sum, now.count - then.count


def _rate(tokens: int, ns: int) -> str:
    return f"{tokens / ns * 1e9:.1f} tokens/s" if tokens and ns > 0 else "-"
