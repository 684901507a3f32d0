"""Thinking budgets: how many tokens the reasoning of an answer may have."""

from dataclasses import dataclass
from typing import ClassVar

from pyengine.errors import InvalidRequestError
from pyengine.messages import Extension
from pyengine.request.arguments import packed, wrong_type
from pyengine.request.features.feature import Asked, Feature, Options


class ThinkingBudgetExtension(Extension):
    """Bounds the reasoning of an answer.

    Attributes:
        tokens: Most tokens between the marks.
        open: The opening mark, token ids as u32 little-endian.
        close: The closing mark, in the same form: with its first token the model itself ends the
            reasoning.
        begun: The prompt has opened the reasoning.
        again: The reasoning may be opened more than once; all of it has one budget.
    """

    TAG: ClassVar[str] = "thinking_budget"

    tokens: int
    open: bytes
    close: bytes
    begun: bool
    again: bool


@dataclass(frozen=True)
class ThinkingBudget:
    """How many tokens an answer may think, and the marks of its reasoning as token ids.

    Attributes:
        tokens: Most tokens between the marks. Behind the last of them ``close`` is written in the
            place of what the model would have said; its log-probabilities are the model's.
        open: What opens the reasoning.
        close: What closes it: a token that the model writes too, and what follows it.
        begun: Whether the prompt has opened the reasoning.
        again: Whether it may be opened more than once; all of it has one budget.
    """

    tokens: int
    open: tuple[int, ...]
    close: tuple[int, ...]
    begun: bool = False
    again: bool = False


@dataclass(frozen=True, kw_only=True)
class ThinkingBudgetOptions(Options):
    """The option for the budget.

    Attributes:
        thinking_budget: Bounds the reasoning; a chat makes it of the model's chat format.
    """

    thinking_budget: ThinkingBudget | None = None


def check_budget(tokens: object) -> None:
    """Check a number of tokens of reasoning.

    Raises:
        InvalidRequestError: It is no such number; names ``thinking_budget``.
    """
    if not isinstance(tokens, int) or isinstance(tokens, bool):
        raise wrong_type("thinking_budget", "a number of tokens", tokens)
    if not 0 <= tokens < 2**31:
        raise InvalidRequestError(
            f"'thinking_budget' must be from 0 to 2147483647, not {tokens}", param="thinking_budget"
        )


def _ask(asked: Asked, options: ThinkingBudgetOptions) -> ThinkingBudgetExtension | None:
    budget, vocab_size = options.thinking_budget, asked.info.vocab_size
    if budget is None:
        return None
    check_budget(budget.tokens)
    marks = [packed("thinking_budget", mark, vocab_size) for mark in (budget.open, budget.close)]
    allowed = asked.params.allowed_token_ids
    if allowed and not set(budget.close) <= set(allowed):
        raise InvalidRequestError(
            "'allowed_token_ids' must have the tokens that close the reasoning, "
            f"{list(budget.close)}, where it has a budget",
            param="allowed_token_ids",
        )
    opening, closing = (mark.tobytes() for mark in marks)
    return ThinkingBudgetExtension(budget.tokens, opening, closing, budget.begun, budget.again)


FEATURE = Feature(ThinkingBudgetExtension, _ask)
