"""Chat templates: the jinja templates of Hugging Face model folders, in a sandbox.

The environment is the one that such templates are written for (described in the documentation of
``transformers`` under chat templates); a test holds the two together.
"""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, Self

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser

from pyengine.chat.sandbox import Metering, TemplateLimitError, TemplateSandbox
from pyengine.chat.sandbox_functions import check_widths
from pyengine.chat.template_source import TemplateSource
from pyengine.errors import InvalidRequestError, ModelLoadError

# Templates of models have some ten thousand characters.
MAX_SOURCE_CHARACTERS = 1 << 20


class ChatTemplate:
    """A model's chat template, compiled once. Any thread may render it.

    Attributes:
        source: The template.
        sought_text: What the template looks for in texts: ``'</think>' in content`` and the like.
        message_keys: The keys of a message that the template reads. A key that is not among them
            would be lost silently: refuse it where messages come from outside.
        names_developer: Whether the template knows the role ``developer`` by name.
        variables: The variables that the template reads, from outside of it.
        tool_source: The template's source; that for requests with tools where the model has one.
    """

    def __init__(
        self,
        source: str,
        special_tokens: dict[str, str] | None = None,
        *,
        tool_source: str | None = None,
        seconds: float = 2.0,
        max_characters: int = 8 << 20,
    ) -> None:
        """Compile ``source``.

        Args:
            source: The template.
            special_tokens: Variables such as ``bos_token`` that templates may use.
            tool_source: Another template for requests with tools, where the model has one.
            seconds: How long compiling and each rendering may take.
            max_characters: How long a prompt may be, and every text that the template makes.

        Raises:
            ModelLoadError: The template is malformed.
        """
        self._special_tokens = special_tokens or {}
        self._seconds = seconds
        self._sandbox = _sandbox(max_characters)
        self._template, read = _compile(source, self._sandbox, seconds)
        self._tool_template = self._template
        if tool_source is not None:
            self._tool_template, more = _compile(tool_source, self._sandbox, seconds)
            read = tuple(a | b for a, b in zip(read, more, strict=True))
        self.source = source
        self.message_keys, self.variables, sought = map(frozenset, read)
        self.sought_text = "\0".join(sorted(sought))
        self.names_developer = "developer" in source + (tool_source or "")
        self.tool_source = source if tool_source is None else tool_source

    @classmethod
    def from_folder(cls, folder: str | Path, **limits: Any) -> Self | None:
        """The chat template of a model folder, or None if it has none.

        ``limits`` are those of the constructor.

        Raises:
            ModelLoadError: A file or the template is malformed.
        """
        found = TemplateSource.read(folder)
        if found is None:
            return None
        return cls(found.text, found.special_tokens, tool_source=found.text_with_tools, **limits)

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        *,
        seconds: float | None = None,
        **variables: Any,
    ) -> str:
        """The prompt for ``messages``. Encode it without adding special tokens.

        Args:
            messages: Role and content each, as in OpenAI's chat completions.
            tools: Descriptions of functions, as in OpenAI's chat completions.
            add_generation_prompt: End where the assistant's answer begins.
            seconds: How long it may take, where that is less than the template's own limit.
            variables: Further variables for the template.

        Raises:
            TemplateLimitError: It takes longer than it may, or makes more.
            InvalidRequestError: The template refuses these messages.
        """
        template = self._tool_template if tools else self._template

        def render() -> str:
            return template.render(
                **self._special_tokens,
                **variables,
                messages=messages,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
            )

        try:
            return self._sandbox.run(render, min(self._seconds, seconds or self._seconds))
        except TemplateLimitError:
            raise
        except jinja2.TemplateError as error:
            raise InvalidRequestError(
                f"the model's chat template refuses these messages: {error.message}",
                param="messages",
            ) from error
        except Exception as error:  # a template is a program and may raise anything
            raise InvalidRequestError(
                "the model's chat template cannot render these messages: "
                f"{type(error).__name__}: {error}",
                param="messages",
            ) from error


class _GenerationTag(Extension):
    """``{% generation %} … {% endgeneration %}``: marks the assistant's text for training.

    Nothing to do when rendering, but a scope of its own, as it has there.
    """

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    check_widths(layout)
    return datetime.now().strftime(layout)


def _sandbox(max_characters: int) -> TemplateSandbox:
    sandbox = TemplateSandbox(
        max_characters,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, loopcontrols],
    )
    sandbox.globals["raise_exception"] = _raise_exception
    sandbox.globals["strftime_now"] = _strftime_now
    return sandbox


def _compile(
    source: str, sandbox: TemplateSandbox, seconds: float
) -> tuple[jinja2.Template, tuple[set[str], ...]]:
    """The template; the keys of messages that it reads, its variables, the texts it looks for."""
    if len(source) > MAX_SOURCE_CHARACTERS:
        raise ModelLoadError(
            f"the chat template has {len(source)} characters; at most {MAX_SOURCE_CHARACTERS} "
            "are taken"
        )
    try:
        tree = sandbox.parse(source)
        read = _message_keys(tree), _variables(tree), _sought(tree)
        metered = Metering().visit(tree)
        # Within the sandbox's limits: jinja computes what is constant when it compiles.
        return sandbox.run(lambda: sandbox.from_string(metered), seconds), read
    except jinja2.TemplateSyntaxError as error:
        raise ModelLoadError(
            f"the chat template is malformed in line {error.lineno}: {error.message}"
        ) from error
    except (RecursionError, TemplateLimitError) as error:
        raise ModelLoadError(f"the chat template cannot be compiled: {error}") from error


def _variables(tree: nodes.Template) -> set[str]:
    """The variables that a template reads from outside.

    Those that it asks about before it sets a default count too.
    """
    asked = {
        test.node.name
        for test in tree.find_all(nodes.Test)
        if test.name in ("defined", "undefined") and isinstance(test.node, nodes.Name)
    }
    return find_undeclared_variables(tree) | asked


def _sought(tree: nodes.Template) -> set[str]:
    """The texts that a template compares with others, or gives to methods of texts."""
    asking: list[nodes.Node] = [*tree.find_all(nodes.Compare)]
    asking += [
        argument
        for call in tree.find_all(nodes.Call)
        if isinstance(call.node, nodes.Getattr)
        for argument in call.args
    ]
    found = [
        const
        for node in asking
        for const in ([node] if isinstance(node, nodes.Const) else node.find_all(nodes.Const))
    ]
    return {const.value for const in found if isinstance(const.value, str)}


def _message_keys(tree: nodes.Template) -> set[str]:
    """Which keys of a message a template reads.

    Names that hold messages are followed through assignments and loops until no new one is found;
    then every ``name.key``, ``name['key']`` and ``'key' in name`` over them counts. A name that
    holds something else in another place counts too: better a key too many than one refused
    wrongly.
    """
    holders = {"messages"}
    while True:
        before = len(holders)
        for target, source in _bindings(tree):
            if _base_name(source) in holders:
                holders.update(name.name for name in _names(target))
        if len(holders) == before:
            break
    keys: set[str] = set()
    for attribute in tree.find_all(nodes.Getattr):
        if _base_name(attribute.node) in holders:
            keys.add(attribute.attr)
    for item in tree.find_all(nodes.Getitem):
        match item:
            case nodes.Getitem(arg=nodes.Const(value=str(key))) if _base_name(item.node) in holders:
                keys.add(key)
    for test in tree.find_all(nodes.Compare):
        if isinstance(test.expr, nodes.Const) and _base_name(test.ops[0].expr) in holders:
            keys.add(str(test.expr.value))
    for call in tree.find_all(nodes.Call):
        method = call.node
        if (
            isinstance(method, nodes.Getattr)
            and method.attr == "get"
            and _base_name(method.node) in holders
            and call.args
            and isinstance(call.args[0], nodes.Const)
        ):
            keys.add(str(call.args[0].value))
    return keys


def _bindings(tree: nodes.Template) -> list[tuple[nodes.Node, nodes.Node]]:
    """(target, source) of everything that gives a value a name: loops, assignments, macro calls."""
    pairs: list[tuple[nodes.Node, nodes.Node]] = [
        (loop.target, loop.iter) for loop in tree.find_all(nodes.For)
    ]
    pairs += [(assign.target, assign.node) for assign in tree.find_all(nodes.Assign)]
    macros = {macro.name: macro.args for macro in tree.find_all(nodes.Macro)}
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name in macros:
            pairs += zip(macros[call.node.name], call.args, strict=False)
    return pairs


def _names(target: nodes.Node) -> list[nodes.Name]:
    return [target] if isinstance(target, nodes.Name) else list(target.find_all(nodes.Name))


def _base_name(node: nodes.Node | None) -> str | None:
    """``messages`` for ``messages``, ``messages[1:]``, ``messages | reverse`` and the like."""
    while node is not None:
        match node:
            case nodes.Name() | nodes.NSRef():
                return node.name
            case nodes.Getitem(arg=nodes.Const(value=str())):
                return None  # parts of a message are not messages
            case nodes.Getitem() | nodes.Filter():
                node = node.node
            case nodes.CondExpr():
                node = node.expr1
            case nodes.Add():
                node = node.left
            case _:
                return None
    return None
