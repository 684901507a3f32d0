"""Tools of a request beside the model's chat format: what is refused, warned of, and enforced."""

from collections.abc import Sequence

from pyengine.chat.formats import ChatFormat
from pyengine.chat.options import ChatOptions
from pyengine.chat.template import ChatTemplate
from pyengine.chat.template_arguments import may_reason
from pyengine.chat.tools import Tool, check_tools
from pyengine.errors import InvalidRequestError, UnsupportedParameterError
from pyengine.grammar import Grammar


def check_tool_support(
    options: ChatOptions, form: ChatFormat | None, template: ChatTemplate, model_name: str
) -> None:
    """Refuse tools and a choice among them that the model cannot be held to.

    Raises:
        InvalidRequestError: Names the parameter.
    """
    check_tools(options.tools, options.tool_choice)
    if options.allowed_tools is not None:
        names = {tool.name for tool in options.tools}
        for name in sorted(options.allowed_tools - names):
            raise InvalidRequestError(
                f"'{name}' is allowed, but is not among the tools", param="tool_choice"
            )
        if not options.allowed_tools:
            raise InvalidRequestError("no tool is allowed", param="tool_choice")
    if not options.tools:
        return
    if form is None:
        raise UnsupportedParameterError(
            f"'tools' are not supported: how '{model_name}' writes tool calls is not "
            "known; its chat format can be named where the engine is started.",
            param="tools",
        )
    if "tools" not in template.variables:
        raise UnsupportedParameterError(
            "'tools' are not supported by the model's chat template.", param="tools"
        )


def tool_warnings(options: ChatOptions) -> list[str]:
    """Warnings of what is left out of the tools' schemas.

    Raises:
        InvalidRequestError: A schema is none of arguments; names it.
    """
    warnings = []
    for index, tool in enumerate(options.tools):
        at = f"tools[{index}].{options.parameters_at}"
        try:
            warnings += [f"{at}: {line}." for line in tool.warnings]
        except InvalidRequestError as error:
            raise InvalidRequestError(f"'{at}': {error.message}", param=at) from None
    return warnings


def answer_grammar(form: ChatFormat, options: ChatOptions, *, is_open: bool) -> Grammar | None:
    """The grammar of all that the model may write: reasoning, calls, text; None is any text.

    Raises:
        InvalidRequestError: The format cannot hold the model to it; names the parameter.
    """
    callable_tools = options.callable_tools

    def made(tools: Sequence[Tool]) -> Grammar | None:
        return form.grammar(
            tools,
            options.tool_choice if callable_tools else "none",
            parallel=options.parallel_tool_calls,
            reasoning=may_reason(options),
            reasoning_open=is_open,
            content=options.grammar,
        )

    try:
        # Tools that may not be called count too: the model sees them, and might call them.
        return made(callable_tools or options.tools)
    except InvalidRequestError as error:
        if error.param is not None:
            raise
        for index, tool in enumerate(options.tools):
            if tool in callable_tools:
                _refuse_by_tool(form, tool, f"tools[{index}].{options.parameters_at}")
        error.param = "tools"
        raise


def _refuse_by_tool(form: ChatFormat, tool: Tool, at: str) -> None:
    """Raise the refusal of ``tool`` alone, if it is refused, naming its field."""
    try:
        form.grammar([tool], "required")
    except InvalidRequestError as error:
        error.param = at
        raise
