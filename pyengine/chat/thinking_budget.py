"""From a number of tokens to the thinking budget of an answer, by the marks of its chat format."""

from pyengine.chat.formats import ChatFormat
from pyengine.chat.options import ChatOptions
from pyengine.errors import UnsupportedParameterError
from pyengine.request.features.thinking_budget import ThinkingBudget
from pyengine.tokenizer import Tokenizer


def unbounded(form: ChatFormat | None, tokenizer: Tokenizer) -> str | None:
    """Says why reasoning in this format cannot be bounded; None: it can be, or there is none."""
    if form is None:
        return "the model's chat format is not known"
    marks = form.layout.reasoning_marks(calls=False)
    if marks is None or tokenizer.token_id(marks.close) is not None:
        return None
    return f"'{marks.close}', which closes the model's reasoning, is more than one token"


def thinking_budget(
    options: ChatOptions, form: ChatFormat | None, tokenizer: Tokenizer, *, is_open: bool
) -> ThinkingBudget | None:
    """The budget of an answer's reasoning; None where it has none, or where nothing is reasoning.

    Args:
        options: The request's.
        form: The model's chat format, if it is known.
        tokenizer: The model's.
        is_open: Whether the prompt has opened the reasoning.

    Raises:
        UnsupportedParameterError: Nothing shows where the reasoning ends.
    """
    if options.thinking_budget is None:
        return None
    why = unbounded(form, tokenizer)
    if form is None or why is not None:
        raise UnsupportedParameterError(
            f"'thinking_budget' cannot be kept: {why}.", param="thinking_budget"
        )
    marks = form.layout.reasoning_marks(calls=bool(options.callable_tools))
    if marks is None:
        return None
    opening, closing = (
        tuple(tokenizer.encode(mark, add_special_tokens=False))
        for mark in (marks.open, marks.close + marks.after)
    )
    return ThinkingBudget(options.thinking_budget, opening, closing, is_open, marks.again)
