"""Conversations: answered at once where they are short, else prepared on threads."""

import copy
from collections.abc import Sequence
from typing import Any

from pyengine.async_engine.prompts import Conversation, Prompts, is_long
from pyengine.async_engine.requests import Prepared, Requests
from pyengine.chat.answer_spec import AnswerSpec
from pyengine.chat.generation import ChatGeneration
from pyengine.chat.handler import ChatHandler
from pyengine.chat.options import ChatOptions
from pyengine.request.options import RequestKeywords
from pyengine.sampling import SamplingParams
from pyengine.telemetry.preparation import begin_counting


def begin_chat(
    prompts: Prompts,
    requests: Requests,
    messages: Sequence[dict[str, Any]],
    params: SamplingParams,
    options: ChatOptions,
    others: RequestKeywords,
) -> ChatGeneration:
    """Begins the answer to a conversation.

    Args:
        prompts: Makes the prompt.
        requests: Begins the request.
        messages: Role and content each.
        params: The validated sampling parameters.
        options: The options of the chat request.
        others: The other options of the request, by name.
    """
    spec, conversation = None, None
    if others.get("cost"):
        begin_counting()
    if options.chat_template is None:
        conversation = prompts.read(messages)
        spec = prompts.spec_on_loop(conversation, params, options)
        short = not is_long(others.get("prediction"))
        if spec and short and (token_ids := prompts.tokens_on_loop(spec.prompt)) is not None:
            asked = spec.request_options(others)
            return spec.answer(requests.begin(token_ids, spec.params, asked))
    given = copy.copy(messages)  # which the caller may change meanwhile
    specs: list[AnswerSpec] = []

    def read(handler: ChatHandler) -> Conversation:
        return prompts.read(given, handler) if conversation is None else conversation

    async def prepared() -> Prepared:
        made, token_ids = await prompts.prepare(read, params, options, spec)
        specs.append(made)
        asked = await prompts.with_prediction(made.request_options(others))
        return token_ids, made.params, asked

    generation = requests.begin_later(prepared(), params, others.get("prompt_logprobs"))
    return ChatGeneration(generation, lambda: specs[0].reading())
