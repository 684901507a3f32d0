"""Chat templates: the jinja templates of Hugging Face model folders.

Rust renders them (``rust/chat_template``), as ``transformers`` does, without the GIL and within
bounds of time and memory; a test holds the two together.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

from pyengine import _core
from pyengine.chat.content_form import ContentForms
from pyengine.chat.template_source import TemplateSource
from pyengine.errors import InvalidRequestError, ModelLoadError

# Templates of models have some ten thousand characters.
MAX_SOURCE_CHARACTERS = 1 << 20
_SOME_TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}},
}


class TemplateLimitError(InvalidRequestError):
    """A chat template made too much."""

    code = "template_limit_exceeded"

    def __init__(self, what: str) -> None:
        super().__init__(f"the model's chat template {what}", param="messages")


class TemplateTimeoutError(TemplateLimitError):
    """A chat template ran for too long, or did the work of that time."""


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
        content_forms: What the template reads as the content of messages.
        tool_content_forms: What the template for requests with tools reads.
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
            seconds: How long each rendering may take. It bounds the memory, too.
            max_characters: How long a prompt may be.

        Raises:
            ModelLoadError: The template is malformed.
        """
        self._special_tokens = special_tokens or {}
        self._seconds = seconds
        self._max_characters = max_characters
        self._template = self._tool_template = _compiled(source)
        compiled = [self._template]
        if tool_source is not None:
            self._tool_template = _compiled(tool_source)
            compiled.append(self._tool_template)
        self.source = source
        self.message_keys = frozenset[str]().union(*(each.message_keys for each in compiled))
        self.variables = frozenset[str]().union(*(each.variables for each in compiled))
        sought = frozenset[str]().union(*(each.sought_texts for each in compiled))
        self.sought_text = "\0".join(sorted(sought))
        self.names_developer = "developer" in source + (tool_source or "")
        self.tool_source = source if tool_source is None else tool_source
        self.content_forms = ContentForms(self.render)
        self.tool_content_forms = self.content_forms
        if tool_source is not None:
            self.tool_content_forms = ContentForms(partial(self.render, tools=[_SOME_TOOL]))

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
        given = {
            **self._special_tokens,
            **variables,
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        limit = min(self._seconds, seconds or self._seconds)
        try:
            return template.render(given, limit, self._max_characters)
        except _core.TemplateError as error:
            raise self._refusal(error, limit) from error
        except (TypeError, ValueError) as error:  # a variable that templates cannot take
            raise _failure(str(error)) from error

    def _refusal(self, error: _core.TemplateError, seconds: float) -> InvalidRequestError:
        kind, message, _ = error.args
        match kind:
            case "slow":
                return TemplateTimeoutError(f"needs more work than {seconds:g} seconds allow")
            case "long":
                return TemplateLimitError(f"makes more than {self._max_characters} characters")
            case "refused":
                return InvalidRequestError(
                    f"the model's chat template refuses these messages: {message}",
                    param="messages",
                )
        return _failure(message)


def _failure(message: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"the model's chat template cannot render these messages: {message}", param="messages"
    )


def _compiled(source: str) -> _core.ChatTemplate:
    if len(source) > MAX_SOURCE_CHARACTERS:
        raise ModelLoadError(
            f"the chat template has {len(source)} characters; at most {MAX_SOURCE_CHARACTERS} "
            "are taken"
        )
    try:
        return _core.ChatTemplate(source)
    except _core.TemplateError as error:
        _, message, line = error.args
        raise ModelLoadError(f"the chat template is malformed in line {line}: {message}") from error
