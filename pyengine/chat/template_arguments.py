"""Arguments of a chat template beside the messages: tools, variables, the switch of reasoning."""

from typing import Any

from pyengine.chat.options import ChatOptions
from pyengine.chat.template import ChatTemplate
from pyengine.chat.tools import Tool
from pyengine.errors import InvalidRequestError, UnsupportedParameterError

# Template variables that switch the reasoning on and off.
_SWITCHES = ("enable_thinking", "thinking")
_OWN_VARIABLES = ("messages", "tools", "add_generation_prompt")


def tool_for_template(tool: Tool) -> dict[str, Any]:
    """A tool as templates want it: as in OpenAI's chat completions.

    Parameters are there even where none were sent, which means an empty list of them: templates
    look into them.
    """
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    return {"type": "function", "function": {**function, "parameters": dict(tool.parameters)}}


def may_reason(options: ChatOptions) -> bool:
    """Whether the model may think before it answers."""
    if options.reasoning is not None:
        return options.reasoning
    return all(options.template_arguments.get(name) is not False for name in _SWITCHES)


def template_arguments(
    options: ChatOptions, template: ChatTemplate, model_name: str, *, reasons: bool
) -> tuple[dict[str, Any], list[str]]:
    """The template's variables, the switch of the reasoning among them; warnings of others.

    Args:
        options: The request's.
        template: The model's, or the request's own.
        model_name: For errors.
        reasons: Whether the model's format has a reasoning part.

    Raises:
        InvalidRequestError: A variable is set twice, or the reasoning cannot be switched so.
    """
    arguments, warnings = dict(options.template_arguments), []
    for name in options.template_arguments:
        if name in _OWN_VARIABLES:
            raise UnsupportedParameterError(
                f"'{name}' is a variable that requests set by other means.",
                param=f"template_arguments.{name}",
            )
        if name not in template.variables:
            del arguments[name]
            warnings.append(f"'{name}' is left out: the model's chat template does not read it.")
    if options.reasoning is None:
        return arguments, warnings
    if options.reasoning and not reasons:
        raise UnsupportedParameterError(f"'{model_name}' has no reasoning.", param="reasoning")
    switches = [name for name in _SWITCHES if name in template.variables]
    if any(name in arguments for name in switches):
        raise InvalidRequestError(
            "'reasoning' and the template's own switch mean the same; give one.",
            param="reasoning",
        )
    if not options.reasoning and reasons and not switches:
        raise UnsupportedParameterError(
            f"The chat template of '{model_name}' cannot switch reasoning off.",
            param="reasoning",
        )
    return arguments | dict.fromkeys(switches, options.reasoning), warnings
