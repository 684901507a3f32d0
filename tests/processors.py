"""Logits processors that tests declare by their paths."""

import math
from collections.abc import Sequence
from typing import Any

from pyengine.logits_processors import LogitsRow


class Bias:
    """Adds to the logits of tokens, as ``logit_bias`` does."""

    def process(self, logits: Any, rows: Sequence[LogitsRow]) -> None:
        for row in rows:
            for token, number in row.arguments["of"].items():
                logits[row.index, int(token)] += number


class NoRepeats:
    """No token comes twice in an answer: looks at what there is."""

    name = "no_repeats"

    def process(self, logits: Any, rows: Sequence[LogitsRow]) -> None:
        for row in rows:
            logits[row.index, list(row.output_token_ids)] = -math.inf


def count_up(logits: Any, rows: Sequence[LogitsRow]) -> None:
    """The answer is the prompt, told again."""
    for row in rows:
        prompt = row.prompt_token_ids
        token = prompt[len(row.output_token_ids) % len(prompt)]
        logits[row.index] = -math.inf
        logits[row.index, token] = 0.0


def fails(logits: Any, rows: Sequence[LogitsRow]) -> None:
    """Raises for a row when it has so many tokens; in a batch after it has changed the others."""
    logits[[row.index for row in rows]] = 0.0
    for row in rows:
        if len(row.output_token_ids) == row.arguments.get("after"):
            raise ValueError(f"{row.arguments['after']} tokens are enough")
        logits[row.index, 40] = 1.0


class Broken:
    """Cannot be made."""

    def __init__(self) -> None:
        raise RuntimeError("no luck")
