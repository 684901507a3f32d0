"""Prompts of texts and conversations: made on the loop where that is short, else on threads."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyengine._core import Stage, Timeline
from pyengine.chat.answer_spec import AnswerSpec
from pyengine.chat.content_tokens import Prompt
from pyengine.chat.handler import ON_LOOP_SECONDS, ChatHandler, is_small
from pyengine.chat.messages import Message, read_messages
from pyengine.chat.options import ChatOptions
from pyengine.chat.template import TemplateTimeoutError
from pyengine.request.options import RequestOptions
from pyengine.sampling import SamplingParams
from pyengine.telemetry.preparation import preparing
from pyengine.tokenizer import OFF_LOOP_CHARACTERS, Tokenizer, longest_prediction

Conversation = tuple[Sequence[Message], Sequence[dict[str, Any]]]
"""Messages, and for each of them the other variables that the template reads."""


@dataclass(frozen=True)
class Prompts:
    """Makes the prompts of one model.

    Attributes:
        max_context: The longest prompt and answer together, in tokens.
        tokenizer: The model's tokenizer.
        handler: The model's chat template and chat format.
        timeline: The spans of the loop.
    """

    max_context: int
    tokenizer: Tokenizer
    handler: ChatHandler
    timeline: Timeline

    def read(
        self, messages: Sequence[dict[str, Any]], handler: ChatHandler | None = None
    ) -> Conversation:
        """Reads messages as the template of ``handler``, or the model's own, wants them."""
        template = (handler or self.handler).template
        read = read_messages(messages, () if template is None else template.message_keys)
        return [message for message, _ in read], [others for _, others in read]

    def render(self, messages: Sequence[dict[str, Any]], options: ChatOptions) -> list[int]:
        """Returns the token ids of a conversation; blocks until they are there."""
        handler = self.handler.for_template(options.chat_template)
        read, others = self.read(messages, handler)
        with preparing(self.timeline, Stage.TEMPLATE):
            prompt, _ = handler.render(read, options, others)
        return self._tokens(prompt, handler)

    def spec_on_loop(
        self, conversation: Conversation, params: SamplingParams, options: ChatOptions
    ) -> AnswerSpec | None:
        """Renders a conversation that takes a few milliseconds; None for any other."""
        messages, others = conversation
        if options.chat_template is not None or not is_small(messages, options):
            return None
        try:
            with preparing(self.timeline, Stage.TEMPLATE):
                return self.handler.prepare(messages, params, options, others, ON_LOOP_SECONDS)
        except TemplateTimeoutError:
            return None

    def tokens_on_loop(self, prompt: Prompt) -> list[int] | None:
        """Tokenizes a short prompt of the model's own template; None for any other."""
        return self._tokens(prompt, self.handler) if _is_short(prompt) else None

    async def prepare(
        self,
        read: Callable[[ChatHandler], Conversation],
        params: SamplingParams,
        options: ChatOptions,
        spec: AnswerSpec | None,
    ) -> tuple[AnswerSpec, list[int]]:
        """Renders and tokenizes a conversation beside the loop.

        Args:
            read: Gives the conversation as the template of a handler wants it.
            params: The validated parameters of the request.
            options: The options of the chat request.
            spec: How the conversation is answered, where it was rendered already.

        Raises:
            InvalidRequestError: As :meth:`ChatHandler.prepare`.
            ContextLengthError: The prompt cannot fit the context.
        """
        handler = self.handler
        if options.chat_template is not None:  # it is compiled on a thread
            handler = await asyncio.to_thread(handler.for_template, options.chat_template)
        if spec is None:
            messages, others = read(handler)
            with preparing(self.timeline, Stage.TEMPLATE):
                spec = await asyncio.to_thread(handler.prepare, messages, params, options, others)
        if _is_short(spec.prompt):
            return spec, self._tokens(spec.prompt, handler)
        with preparing(self.timeline, Stage.TOKENIZE):
            self.tokenizer.check_length(spec.prompt.text, self.max_context)
            return spec, await asyncio.to_thread(handler.encode, spec.prompt)

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Returns the token ids of a prompt; a long text is tokenized on a thread.

        Raises:
            ContextLengthError: The text is so long that it cannot fit the context.
        """
        with preparing(self.timeline, Stage.TOKENIZE):
            self.tokenizer.check_length(text, self.max_context)
            return await self.tokenizer.encode_async(text, add_special_tokens)

    async def with_prediction(self, options: RequestOptions) -> RequestOptions:
        """Returns the options with a prediction of token ids in the place of a text."""
        text = options.prediction
        if not isinstance(text, str):
            return options
        text = longest_prediction(text, self.max_context)
        token_ids = await self.tokenizer.encode_async(text, add_special_tokens=False)
        return replace(options, prediction=token_ids)

    def _tokens(self, prompt: Prompt, handler: ChatHandler) -> list[int]:
        """Returns the token ids of a conversation; refuses one that cannot fit the context."""
        with preparing(self.timeline, Stage.TOKENIZE):
            self.tokenizer.check_length(prompt.text, self.max_context)
            return handler.encode(prompt)


def is_long(text: object) -> bool:
    """Whether a text takes so long to tokenize that no loop may wait for it."""
    return isinstance(text, str) and len(text) >= OFF_LOOP_CHARACTERS


def _is_short(prompt: Prompt) -> bool:
    """Whether a prompt may be tokenized on the loop."""
    return prompt.respelled is None and not is_long(prompt.text)
