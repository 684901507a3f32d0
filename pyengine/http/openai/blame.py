"""Which field of a request is at fault when the engine refuses its grammar."""

import re

from pyengine.chat.options import ChatOptions
from pyengine.http.openai.structured import Constraint

# How refusals of a tool's schema begin: chat formats name the schemas after their tools.
_OF_A_TOOL = re.compile(r"tool '([A-Za-z0-9_.-]+)'[:,]")


def blamed(wanted: Constraint, options: ChatOptions, message: str) -> str:
    """The field that a refusal's ``message`` speaks of.

    What is said of a tool's schema names the tool. All else is said of the whole: then it is the
    field that describes the text, the only tool there is, or the tools together.
    """
    tools = [index for index, tool in enumerate(options.tools) if tool in options.callable_tools]
    if found := _OF_A_TOOL.match(message):
        tools = [index for index in tools if options.tools[index].name == found[1]] or tools
    elif wanted.grammar is not None or not tools:
        return wanted.field
    return f"tools[{tools[0]}].{options.parameters_at}" if len(tools) == 1 else "tools"
