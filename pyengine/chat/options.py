"""The options of a chat request besides sampling, and how callers may spell them."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict, cast

from pyengine.chat.tools import Named, Tool, ToolChoice
from pyengine.errors import InvalidRequestError
from pyengine.grammar import Grammar
from pyengine.request.features.thinking_budget import check_budget
from pyengine.request.options import RequestKeywords


@dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """The options of a chat request besides sampling.

    Attributes:
        tools: Functions that the model may call; the prompt describes them.
        tool_choice: Whether the model must, may or must not call them.
        allowed_tools: Names of the tools that the model may call; None is all.
        parallel_tool_calls: Whether the model may call several tools at once.
        grammar: The grammar of the answer's text.
        reasoning: Whether the model thinks first; None leaves that to the template.
        thinking_budget: Most tokens of the reasoning, without its marks; the reasoning is closed
            then, and the answer goes on.
        chat_template: A template in the place of the model's own.
        template_arguments: Further variables for the chat template.
        add_generation_prompt: Whether the prompt ends where the assistant's answer begins.
        continue_final_message: Whether the prompt ends with the text of the last message, so that
            the answer goes on with it; no generation prompt is added then.
        parameters_at: The path to the arguments' schema in an entry of the request's tools, for
            errors and warnings.
    """

    tools: Sequence[Tool] = ()
    tool_choice: ToolChoice = "auto"
    allowed_tools: frozenset[str] | None = None
    parallel_tool_calls: bool = True
    grammar: Grammar | None = None
    reasoning: bool | None = None
    thinking_budget: int | None = None
    chat_template: str | None = None
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    parameters_at: str = "function.parameters"

    def __post_init__(self) -> None:
        if self.thinking_budget is not None:
            check_budget(self.thinking_budget)

    @property
    def callable_tools(self) -> tuple[Tool, ...]:
        """The tools that may be called."""
        if self.tool_choice == "none":
            return ()
        if self.allowed_tools is None:
            return tuple(self.tools)
        return tuple(tool for tool in self.tools if tool.name in self.allowed_tools)


class ConversationKeywords(TypedDict, total=False):
    """The keywords of ``chat`` that :class:`ChatOptions` describes, as callers spell them.

    A tool is a Tool or a dict as in OpenAI's chat completions; the tool choice may be OpenAI's
    object, too.
    """

    tools: Sequence[Tool | dict[str, Any]]
    tool_choice: ToolChoice | dict[str, Any]
    allowed_tools: Collection[str] | None
    parallel_tool_calls: bool
    grammar: Grammar | None
    reasoning: bool | None
    thinking_budget: int | None
    chat_template: str | None
    template_arguments: Mapping[str, Any] | None


class ChatKeywords(ConversationKeywords, RequestKeywords, total=False):
    """The keywords of ``chat``: of a conversation, and of any request."""


def made_tools(given: Sequence[Tool | Mapping[str, Any]]) -> tuple[Tool, ...]:
    """Tools from what OpenAI's chat completions take, or as they are.

    Raises:
        InvalidRequestError: One is malformed; named.
    """
    made = []
    for index, tool in enumerate(given):
        at = f"tools[{index}]"
        if not isinstance(tool, Tool | Mapping):
            raise InvalidRequestError(f"'{at}' must be a Tool or a dict", param=at)
        made.append(tool if isinstance(tool, Tool) else Tool.from_openai(tool, at))
    return tuple(made)


def made_choice(given: Any) -> tuple[ToolChoice, frozenset[str] | None]:
    """A tool choice, as it is or in OpenAI's form, and the names of the tools it allows.

    Raises:
        InvalidRequestError: It is neither; named.
    """
    if given in ("none", "auto", "required") or isinstance(given, Named):
        return given, None
    kind = given.get("type") if isinstance(given, Mapping) else None
    if kind == "function":
        return Named(_function_name(given, "tool_choice")), None
    if kind == "allowed_tools" and isinstance(allowed := given.get(kind), Mapping):
        at = f"tool_choice.{kind}"
        mode: Any = allowed.get("mode")
        tools: Any = allowed.get("tools")
        if mode not in ("auto", "required"):
            raise InvalidRequestError(f"'{at}.mode' must be auto or required", param=f"{at}.mode")
        if not _is_list(tools):
            raise InvalidRequestError(f"'{at}.tools' must be a list", param=f"{at}.tools")
        names = (_function_name(tool, f"{at}.tools[{i}]") for i, tool in enumerate(tools))
        return mode, frozenset(names)
    raise InvalidRequestError(
        "'tool_choice' must be none, auto, required, Named(...), or OpenAI's object of type "
        f"function or allowed_tools, not {_shown(given)}",
        param="tool_choice",
    )


def _function_name(given: Any, at: str) -> str:
    """The name in ``{"type": "function", "function": {"name": ...}}``."""
    function = given.get("function") if isinstance(given, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise InvalidRequestError(f"'{at}' must name a function", param=f"{at}.function.name")
    return name


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:100] + "…"


def made_options(given: ChatKeywords) -> tuple[ChatOptions, RequestKeywords]:
    """Returns the options of a chat request that a caller of the library gives, checked, and the
    other keywords, which any request takes.

    Raises:
        InvalidRequestError: An argument is not what it should be; named.
        TypeError: There is no such keyword.
    """
    rest: dict[str, Any] = dict(given)
    chat = {name: rest.pop(name) for name in ConversationKeywords.__annotations__ if name in rest}
    if unknown := rest.keys() - RequestKeywords.__annotations__:
        raise TypeError(f"chat() got an unexpected keyword argument {min(unknown)!r}")
    for name, (holds, wanted) in _CHECKS.items():
        if name in chat and not holds(chat[name]):
            raise InvalidRequestError(
                f"'{name}' must be {wanted}, not {_shown(chat[name])}",
                param=name,
                code="invalid_type",
            )
    choice, allowed = made_choice(chat.pop("tool_choice", "auto"))
    named = chat.pop("allowed_tools", None)
    if allowed is not None and named is not None:
        raise InvalidRequestError(
            "'tool_choice' and 'allowed_tools' both say which tools may be called; give one",
            param="allowed_tools",
        )
    chat["tools"] = made_tools(chat.get("tools", ()))
    chat["template_arguments"] = chat.get("template_arguments") or {}
    chat["allowed_tools"] = allowed if named is None else frozenset(named)
    return ChatOptions(tool_choice=choice, **chat), cast("RequestKeywords", rest)


def _are_names(value: Any) -> bool:
    some = isinstance(value, Collection) and not isinstance(value, str)
    return some and all(isinstance(name, str) for name in value)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "tools": (_is_list, "a list"),
    "allowed_tools": (lambda given: given is None or _are_names(given), "names of tools"),
    "parallel_tool_calls": (lambda given: isinstance(given, bool), "a bool"),
    "grammar": (lambda given: isinstance(given, Grammar | None), "a Grammar"),
    "reasoning": (lambda given: isinstance(given, bool | None), "a bool"),
    "chat_template": (lambda given: isinstance(given, str | None), "a text"),
    "template_arguments": (lambda given: isinstance(given, Mapping | None), "a dict"),
}
