"""Tokens of texts and conversations: vLLM's and llama.cpp's requests and answers."""

from typing import Any

import msgspec

from pyengine.chat.messages import Message
from pyengine.http.openai.schema.tools import ToolParam


class ConversationFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A conversation, and how it is rendered."""

    model: str | None = None
    messages: list[Message] | None = None
    tools: list[ToolParam] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class TokenizeRequest(ConversationFields, kw_only=True, forbid_unknown_fields=True):
    """``POST /tokenize``: of ``prompt``, of ``content`` or of ``messages``.

    Attributes:
        content: Other name of prompt, llama.cpp's; special tokens are added to it only where
            add_special_tokens is true.
        return_token_strs: Add the text of each token.
    """

    prompt: str | None = None
    content: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class TokenizeAnswer(msgspec.Struct, kw_only=True, gc=False):
    """The token ids, how many there are, and the texts of each where they are wanted."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | msgspec.UnsetType = msgspec.UNSET
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET


class DetokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``POST /detokenize``."""

    tokens: list[int]
    model: str | None = None
    skip_special_tokens: bool | None = None


class DetokenizeAnswer(msgspec.Struct, gc=False):
    """The text, by vLLM's name and by llama.cpp's."""

    prompt: str
    content: str


class ApplyTemplateRequest(ConversationFields, kw_only=True, forbid_unknown_fields=True):
    """``POST /apply-template``."""


class ApplyTemplateAnswer(msgspec.Struct, gc=False):
    """The conversation as the model sees it."""

    prompt: str
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET
