"""A model's chat template and chat format: prompts from conversations, answers from text.

::

    messages, tools ──► render ──► prompt ──► AnswerSpec: params, grammar ──► the engine
                                                  └──────► reader of answers
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from pyengine.chat.answer_spec import AnswerSpec
from pyengine.chat.content_tokens import ContentTokens, Prompt
from pyengine.chat.formats import format_of
from pyengine.chat.formats.delimited import Delimited
from pyengine.chat.messages import Message, template_messages
from pyengine.chat.options import ChatOptions
from pyengine.chat.reader import ReasoningTokens
from pyengine.chat.template import ChatTemplate, TemplateLimitError
from pyengine.chat.template_arguments import template_arguments, tool_for_template
from pyengine.chat.template_source import special_tokens_of
from pyengine.chat.thinking_budget import thinking_budget, unbounded
from pyengine.chat.tool_rules import answer_grammar, check_tool_support, tool_warnings
from pyengine.errors import InvalidRequestError, ModelLoadError
from pyengine.sampling import SamplingParams
from pyengine.settings.config import EngineConfig
from pyengine.tokenizer import Tokenizer

# A conversation that takes a template a few milliseconds: messages and tools count as that many
# characters of text.
SMALL_CHARACTERS = 20_000
_MESSAGE_CHARACTERS = 200
_TOOL_CHARACTERS = 1_000
# How long a template may keep an event loop; ordinary ones take a hundredth of it.
ON_LOOP_SECONDS = 0.02
# How many templates of requests are kept compiled.
_TEMPLATES_KEPT = 8


# Stands behind the last message's text while a template renders it: two characters for private
# use, which no text is likely to have side by side, and a space that templates may strip.
_END = "\ue0ff\ue0fe "


def _with_end(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with the end of the last one's text marked."""
    *before, last = messages
    text = last.get("content") or ""
    if isinstance(text, list):
        *others, part = text
        return [*before, {**last, "content": [*others, {**part, "text": part["text"] + _END}]}]
    return [*before, {**last, "content": text + _END}] if text else messages


def _until_the_end(rendered: str) -> str:
    """A rendered conversation up to the end of its last message's text.

    Raises:
        InvalidRequestError: The template does not write that text as it is.
    """
    text, found, rest = rendered.rpartition(_END.rstrip())
    if not found:
        raise InvalidRequestError(
            "the last message has no text that the model's chat template would write as it is, to "
            "be continued",
            param="messages",
        )
    return text if rest.startswith(" ") else text.rstrip()


def is_small(messages: Sequence[Message], options: ChatOptions) -> bool:
    """Whether a conversation may be rendered on an event loop."""
    size = _MESSAGE_CHARACTERS * len(messages) + _TOOL_CHARACTERS * len(options.tools)
    if size >= SMALL_CHARACTERS:
        return False
    for message in messages:
        content = message.content
        if isinstance(content, str):
            size += len(content)
        elif content:
            size += sum(len(part.text or "") for part in content)
        for call in message.tool_calls or ():
            size += len(call.called.arguments)
        size += len(message.reasoning_content or "")
    return size < SMALL_CHARACTERS


class ChatHandler:
    """A model's chat template and chat format. Any thread may use it.

    Attributes:
        template: None where the model has none: it does not chat.
        format: None where it is not known: then no tools, and reasoning stays in the text.
    """

    def __init__(
        self,
        model_name: str,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        chat_format: str | None = None,
        *,
        special_tokens_in_content: Literal["text", "allow"] = "text",
        compile_template: Callable[[str], ChatTemplate] = ChatTemplate,
    ) -> None:
        """Take the format by its name, ``none`` for none; None looks at the template.

        Args:
            model_name: For errors.
            tokenizer: The model's.
            template: The model's chat template.
            chat_format: The name of its format.
            special_tokens_in_content: What special tokens are that messages and tools spell out.
            compile_template: Compiles a template that a request brings.
        """
        self.template = template
        self.format = format_of(None if template is None else template.tool_source, chat_format)
        self._model_name = model_name
        self._tokenizer = tokenizer
        self._special_tokens_in_content = special_tokens_in_content
        self._chat_format = chat_format
        self._compile_template = compile_template
        self._with_template = lru_cache(_TEMPLATES_KEPT)(self._made_with)
        self._content: ContentTokens | None = None
        if template is not None and special_tokens_in_content == "text":
            layout = None if self.format is None else self.format.layout
            # Harmony's markers are those of its turns.
            markers = layout.markers if isinstance(layout, Delimited) else ()
            self._content = ContentTokens(tokenizer, template, markers)

    @classmethod
    def from_folder(
        cls, folder: Path, config: EngineConfig, tokenizer: Tokenizer, model_name: str
    ) -> "ChatHandler":
        """The handler of a model's folder, with the limits and the format that ``config`` names.

        Raises:
            ModelLoadError: The template is malformed, or does not end in its time.
        """
        limits: dict[str, Any] = {
            "seconds": config.template_timeout_s,
            "max_characters": config.max_template_characters,
        }
        tokens = special_tokens_of(folder)
        handler = cls(
            model_name,
            tokenizer,
            ChatTemplate.from_folder(folder, **limits),
            config.chat_format,
            special_tokens_in_content=config.special_tokens_in_content,
            compile_template=partial(ChatTemplate, special_tokens=tokens, **limits),
        )
        handler.check_template()
        if handler._content is not None:
            handler._content.load()
        return handler

    def for_template(self, source: str | None) -> "ChatHandler":
        """The same model with a template that a request brings; itself for None.

        The few that were used last are kept. Compiling one takes milliseconds: call this on a
        thread.

        Raises:
            InvalidRequestError: The template is malformed.
        """
        return self if source is None else self._with_template(source)

    def _made_with(self, source: str) -> "ChatHandler":
        try:
            template = self._compile_template(source)
        except ModelLoadError as error:
            raise InvalidRequestError(
                f"'chat_template': {error.message}", param="chat_template"
            ) from error
        # A template that shows no format tells nothing of how the model writes.
        found = format_of(source) or self.format
        return ChatHandler(
            self._model_name,
            self._tokenizer,
            template,
            self._chat_format or ("none" if found is None else found.name),
            special_tokens_in_content=self._special_tokens_in_content,
        )

    def check_template(self) -> None:
        """Render a short conversation, to notice at the start a template that does not end.

        Raises:
            ModelLoadError: The template takes longer for it than it may, or makes more.
        """
        try:
            self.render([Message("user", "Hello!")], ChatOptions())
        except TemplateLimitError as error:
            raise ModelLoadError(f"{error.message} for a message of one word") from error
        except InvalidRequestError:
            pass  # it wants another conversation

    @property
    def reasons(self) -> bool:
        """Whether the model's format has a reasoning part."""
        if self.format is None:
            return False
        layout = self.format.layout
        return not isinstance(layout, Delimited) or layout.reasoning is not None

    @property
    def unbounded(self) -> str | None:
        """Why the reasoning of answers cannot be bounded; None: it can be, or there is none."""
        return unbounded(self.format, self._tokenizer)

    def render(
        self,
        messages: Sequence[Message],
        options: ChatOptions,
        others: Sequence[Mapping[str, Any]] = (),
        seconds: float | None = None,
    ) -> tuple[Prompt, tuple[str, ...]]:
        """The prompt, and what is left out of it.

        Args:
            messages: The conversation.
            options: The options of the request.
            others: Further variables of each message for the template.
            seconds: How long the template may run, where that is less than its own limit.

        Raises:
            TemplateLimitError: The template takes longer than it may, or makes more.
            InvalidRequestError: The model has no template, or cannot do what is wanted.
        """
        if self.template is None:
            raise InvalidRequestError(
                f"'{self._model_name}' has no chat template: ask /v1/completions, or put a "
                "chat_template.jinja into its folder.",
                param="messages",
            )
        made, warnings = template_messages(messages, self.template, tools=bool(options.tools))
        for turn, more in zip(made, others, strict=False):
            turn.update(more)
        check_tool_support(options, self.format, self.template, self._model_name)
        warnings += tool_warnings(options)
        tools = [tool_for_template(tool) for tool in options.tools] or None
        arguments, unread = template_arguments(
            options, self.template, self._model_name, reasons=self.reasons
        )
        warnings += unread
        given = made, tools, arguments
        marked = None if self._content is None else self._content.marked(given)
        if marked is not None:
            made, tools, arguments = marked[0]
        open_end = options.continue_final_message
        begins = options.add_generation_prompt and not open_end
        if open_end:
            made = _with_end(made)
        text = self.template.render(made, tools, begins, seconds=seconds, **arguments)
        if open_end:
            text = _until_the_end(text)
        if self._content is None or marked is None:
            return Prompt(text), tuple(warnings)
        return self._content.prompt(text, marked[1]), tuple(warnings)

    def encode(self, prompt: Prompt) -> list[int]:
        """The token ids of a prompt."""
        if self._content is None:
            return self._tokenizer.encode(prompt.text, add_special_tokens=False)
        return self._content.encode(prompt)

    def text_start(self, prompt: Prompt) -> list[int]:
        """The token ids behind which the text of the answer to a prompt comes next.

        Reasoning that the prompt has opened is closed by them.
        """
        if self.format is None:
            return []
        layout, start = self.format.layout, ""
        marks = layout.reasoning_marks(calls=False)
        if marks is not None and layout.opens_reasoning(prompt.text):
            start = marks.close + marks.after
        if not start.endswith(layout.text_open):
            start += layout.text_open
        return self._tokenizer.encode(start, add_special_tokens=False) if start else []

    def prepare(
        self,
        messages: Sequence[Message],
        params: SamplingParams,
        options: ChatOptions,
        others: Sequence[Mapping[str, Any]] = (),
        seconds: float | None = None,
    ) -> AnswerSpec:
        """Render a conversation and settle how its answers are generated and read.

        Takes what :meth:`render` does.

        Raises:
            InvalidRequestError: As :meth:`render`; or the format cannot hold the model to what is
                wanted; names it.
        """
        prompt, warnings = self.render(messages, options, others, seconds)
        form = self.format
        is_open = form is not None and form.opens_reasoning(prompt.text)
        budget = thinking_budget(options, form, self._tokenizer, is_open=is_open)
        if form is None:
            return AnswerSpec(prompt, warnings, params, options.grammar)
        tools = options.callable_tools
        grammar = answer_grammar(form, options, is_open=is_open)
        if not params.ignore_eos and (stops := self._tokenizer.token_ids(form.stop_tokens)):
            both = (*params.stop_token_ids, *stops)
            params = msgspec.structs.replace(params, stop_token_ids=both)
        if not tools and not self.reasons:
            return AnswerSpec(prompt, warnings, params, grammar)
        hidden = None
        special = self._tokenizer.special_tokens
        if params.skip_special_tokens and form.needs_special_tokens(special):
            params = msgspec.structs.replace(params, skip_special_tokens=False)
            hidden = self._special_tokens
        return AnswerSpec(
            prompt,
            warnings,
            params,
            grammar,
            budget,
            form,
            tools,
            is_open,
            hidden,
            self._reasoning_tokens,
            self._tokens_of if self.reasons else None,
            options.grammar is not None and options.tool_choice == "auto",
            form.warnings(tools),
        )

    @cached_property
    def _special_tokens(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, sorted(self._tokenizer.special_tokens))))

    def _tokens_of(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False))

    @cached_property
    def _reasoning_tokens(self) -> ReasoningTokens | None:
        """The tokens by which the reasoning is counted, where its markers are one token each."""
        layout = None if self.format is None else self.format.layout
        if not isinstance(layout, Delimited) or layout.reasoning is None:
            return None
        close = self._tokenizer.token_id(layout.reasoning.close)
        opened = self._tokenizer.token_id(layout.reasoning.open)
        return None if close is None or opened is None else ReasoningTokens(opened, close)
