"""The engine as an async library: :class:`AsyncEngine`.

Here are conversations; what an engine does with plain texts is in :mod:`.texts`.
"""

import asyncio
import copy
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Unpack

from pyengine._core import Stage
from pyengine.async_engine.texts import Prepared, TextEngine, is_spelled
from pyengine.chat.answer_spec import AnswerSpec
from pyengine.chat.content_tokens import Prompt
from pyengine.chat.generation import ChatGeneration
from pyengine.chat.handler import ON_LOOP_SECONDS, ChatHandler, is_small
from pyengine.chat.messages import Message, read_messages
from pyengine.chat.options import ChatOptions, made_options
from pyengine.chat.sandbox import TemplateTimeoutError
from pyengine.chat.tools import Tool, ToolChoice
from pyengine.grammar.description import Grammar
from pyengine.request.options import RequestKeywords, RequestOptions
from pyengine.request.submission import checked_params
from pyengine.sampling import SamplingParams
from pyengine.tokenizer import OFF_LOOP_CHARACTERS

Conversation = tuple[list[Message], list[dict[str, Any]]]
"""Messages, and for each of them the other variables that the template reads."""


class ChatKeywords(RequestKeywords, total=False):
    """The keywords of :meth:`AsyncEngine.chat`."""

    tools: Sequence[Tool | dict[str, Any]]
    tool_choice: ToolChoice | dict[str, Any]
    allowed_tools: Collection[str] | None
    parallel_tool_calls: bool
    grammar: Grammar | None
    reasoning: bool | None
    chat_template: str | None
    template_arguments: dict[str, Any] | None


class AsyncEngine(TextEngine):
    """An LLM engine in your asyncio service::

        async with AsyncEngine() as engine:
            async for update in engine.chat([{"role": "user", "content": "Hello!"}]):
                print(update.text, end="")

    Belongs to the loop that started it; its methods are called there. With ``placement="thread"``
    the model runs on a thread of this process: no subprocess, no signal handler. With ``"process"``
    it runs in one of its own, out of reach of what the service does with the GIL; if that process
    dies, another is started and every request goes on where it was.

    Attributes:
        config: The configuration of the engine.
        ready: Whether requests are taken.
        failure: The error that made loading fail, or killed the engine; else None.
        dead: An event, set when the engine has died for good.
        info: Context length, vocabulary size and KV blocks, once started.
        model_names: The names that the model answers to.
        tokenizer: The model's tokenizer, once started.
        generation_config: What the model's folder says of sampling, once started.
        handler: The model's chat template and chat format, once started.
        vectors: How the model makes vectors of texts, once started.
        recorder: The spans of all parts of the engine; may be switched off.
        timeline: The spans of this loop.
        admission: Counts requests whose answers are still to be prepared, for an HTTP layer.
    """

    handler: ChatHandler

    async def _read_folder(self, folder: Path) -> None:
        """Read chat template and chat format, too."""
        await super()._read_folder(folder)
        self.handler = await asyncio.to_thread(
            ChatHandler.from_folder, folder, self.config, self.tokenizer, self.model_name
        )

    def chat(
        self,
        messages: Sequence[dict[str, Any]],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Tool | dict[str, Any]] = (),
        tool_choice: ToolChoice | dict[str, Any] = "auto",
        allowed_tools: Collection[str] | None = None,
        parallel_tool_calls: bool = True,
        grammar: Grammar | None = None,
        reasoning: bool | None = None,
        chat_template: str | None = None,
        template_arguments: dict[str, Any] | None = None,
        **options: Unpack[RequestKeywords],
    ) -> ChatGeneration:
        """Answer a conversation, through the model's chat template and in its chat format::

            answer = await engine.chat(messages, grammar=json_schema(City))
            city = parse_answer(answer.text, City)

        Returns at once. A long conversation, and one with a template of its own, is rendered and
        tokenized on a thread; its errors are raised where the answer is awaited.

        Args:
            messages: Role and content each, as in OpenAI's chat completions; an answer's
                :attr:`~pyengine.chat.answer.ChatAnswer.message` is one.
            params: As :meth:`generate` takes them.
            tools: Functions that the model may call, as in OpenAI's chat completions or as Tools.
                Its calls follow their schemas.
            tool_choice: ``none``, ``auto``, ``required``, ``Named(tool)``, or OpenAI's object.
            allowed_tools: Names of those that may be called; None is all of them.
            parallel_tool_calls: Whether several may be called at once.
            grammar: The grammar of the answer's text; reasoning may come before it, and calls in
                its place.
            reasoning: Whether the model thinks first, where its template has a switch for that;
                None leaves it as it is.
            chat_template: A template in the place of the model's own, within the same limits.
            template_arguments: Further variables for the template.
            options: As :meth:`generate` takes them: priority, timeout, prediction and so on.

        Raises:
            InvalidRequestError: The model has no template, or it refuses the messages; or the model
                cannot do what is wanted.
        """
        chat_options = made_options(
            tools=tools,
            tool_choice=tool_choice,
            allowed_tools=allowed_tools,
            parallel_tool_calls=parallel_tool_calls,
            grammar=grammar,
            reasoning=reasoning,
            chat_template=chat_template,
            template_arguments=template_arguments,
        )
        self._connected()
        checked = checked_params(params, self.default_sampling_params)
        if chat_template is not None:
            given = copy.copy(messages)  # which the caller may change meanwhile
            return self._answer_later(
                lambda handler: self._read(given, handler), checked, chat_options, options
            )
        read = self._read(messages, self.handler)
        spec = self._spec_on_loop(read, checked, chat_options)
        if spec is None or not _is_short(spec.prompt):
            return self._answer_later(lambda _: read, checked, chat_options, options, spec)
        token_ids = self._chat_tokens(spec.prompt, self.handler)
        asked = RequestOptions(grammar=spec.grammar, **options)
        return spec.answer(self.begin(token_ids, spec.params, asked))

    def _answer_later(
        self,
        read: Callable[[ChatHandler], Conversation],
        params: SamplingParams,
        chat_options: ChatOptions,
        options: RequestKeywords,
        spec: AnswerSpec | None = None,
    ) -> ChatGeneration:
        """Answer a conversation whose prompt is prepared on threads.

        Args:
            read: Gives the messages, as the template of a handler wants them.
            params: As they were validated.
            chat_options: The options of :meth:`chat`.
            options: The keywords of the request.
            spec: How the conversation is answered, where it was rendered already.
        """
        specs: list[AnswerSpec] = []

        async def prepare() -> Prepared:
            handler = await self._handler_of(chat_options)
            made = spec or await self._spec_on_thread(handler, read(handler), params, chat_options)
            specs.append(made)
            token_ids = await self._tokens_of(made.prompt, handler)
            return token_ids, made.params, RequestOptions(grammar=made.grammar, **options)

        spelled = is_spelled(params, options.get("prompt_logprobs"))
        generation = self._begin_later(prepare(), spelled=spelled)
        return ChatGeneration(generation, lambda: specs[0].reading())

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        tools: Sequence[Tool | dict[str, Any]] = (),
        reasoning: bool | None = None,
        chat_template: str | None = None,
        template_arguments: dict[str, Any] | None = None,
    ) -> list[int]:
        """The token ids of a conversation, ready for the assistant's answer.

        Takes and raises what :meth:`chat` does.
        """
        chat_options = made_options(
            tools=tools,
            reasoning=reasoning,
            chat_template=chat_template,
            template_arguments=template_arguments,
        )
        handler = self.handler.for_template(chat_template)
        read, others = self._read(messages, handler)
        self.timeline.begin()
        prompt, _ = handler.render(read, chat_options, others)
        self.timeline.end_span(Stage.TEMPLATE)
        return self._chat_tokens(prompt, handler)

    def _chat_tokens(self, prompt: Prompt, handler: ChatHandler) -> list[int]:
        """The token ids of a conversation; refuses one that cannot fit the context."""
        self.tokenizer.check_length(prompt.text, self.max_context)
        token_ids = handler.encode(prompt)
        self.timeline.end_span(Stage.TOKENIZE)
        return token_ids

    async def prepare(
        self, messages: Sequence[Message], params: SamplingParams, options: ChatOptions
    ) -> tuple[AnswerSpec, list[int]]:
        """How a conversation is answered, and the token ids of its prompt.

        A large conversation, and a template that takes its time, go to a thread.

        Raises:
            InvalidRequestError: As :meth:`ChatHandler.prepare`.
            ContextLengthError: It is so long that it cannot fit the context.
        """
        read: Conversation = list(messages), []
        spec, handler = self._spec_on_loop(read, params, options), await self._handler_of(options)
        if spec is None:
            spec = await self._spec_on_thread(handler, read, params, options)
        return spec, await self._tokens_of(spec.prompt, handler)

    def _spec_on_loop(
        self, read: Conversation, params: SamplingParams, options: ChatOptions
    ) -> AnswerSpec | None:
        """Renders a conversation that takes a few milliseconds; None for any other."""
        messages, others = read
        if options.chat_template is not None or not is_small(messages, options):
            return None
        start = self.timeline.begin()
        try:
            return self.handler.prepare(messages, params, options, others, ON_LOOP_SECONDS)
        except TemplateTimeoutError:
            return None
        finally:
            self.timeline.span(Stage.TEMPLATE, start)

    async def _spec_on_thread(
        self,
        handler: ChatHandler,
        read: Conversation,
        params: SamplingParams,
        options: ChatOptions,
    ) -> AnswerSpec:
        """Renders a conversation beside the loop."""
        messages, others = read
        start = self.timeline.begin()
        spec = await asyncio.to_thread(handler.prepare, messages, params, options, others)
        self.timeline.span(Stage.TEMPLATE, start)
        return spec

    async def _tokens_of(self, prompt: Prompt, handler: ChatHandler) -> list[int]:
        """Tokenizes a prompt, beside the loop unless it is short.

        Raises:
            ContextLengthError: The prompt cannot fit the context.
        """
        start = self.timeline.begin()
        self.tokenizer.check_length(prompt.text, self.max_context)
        if _is_short(prompt):
            token_ids = handler.encode(prompt)
        else:
            token_ids = await asyncio.to_thread(handler.encode, prompt)
        self.timeline.span(Stage.TOKENIZE, start)
        return token_ids

    async def _handler_of(self, options: ChatOptions) -> ChatHandler:
        """The handler of a request, whose own template is compiled on a thread."""
        if options.chat_template is None:
            return self.handler
        return await asyncio.to_thread(self.handler.for_template, options.chat_template)

    def _read(self, messages: Sequence[dict[str, Any]], handler: ChatHandler) -> Conversation:
        """The messages of a conversation, and what else each has for the template."""
        self._connected()
        template = handler.template
        read = read_messages(messages, () if template is None else template.message_keys)
        return [message for message, _ in read], [others for _, others in read]


def _is_short(prompt: Prompt) -> bool:
    """Whether a prompt may be tokenized on the loop."""
    return prompt.respelled is None and len(prompt.text) < OFF_LOOP_CHARACTERS
