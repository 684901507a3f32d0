"""Ollama's requests and answers. What its ``show`` and ``tags`` say of a model is in dicts."""

from typing import Any, Literal

import msgspec

from pyengine.http.scheduled import ScheduledRequest


class OllamaFunction(msgspec.Struct, forbid_unknown_fields=True):
    """A call of the assistant's; its arguments are an object."""

    name: str
    arguments: dict[str, Any] = {}


class OllamaCall(msgspec.Struct, forbid_unknown_fields=True):
    """An entry of a message's ``tool_calls``."""

    function: OllamaFunction
    id: str | None = None


class OllamaMessage(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A message. A tool's answers the calls of the message before it in their order.

    Attributes:
        thinking: What the assistant thought before it answered.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str | None = None
    tool_calls: list[OllamaCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaOptions(msgspec.Struct, forbid_unknown_fields=True):
    """``options``: sampling parameters, by Ollama's names.

    Attributes:
        num_predict: Most tokens to generate; -1 and -2 are no limit.
        repeat_penalty: Other name of repetition_penalty.
        repeat_last_n: How many of the last tokens penalties look at: -1 is all, 0 none; another
            number is only taken where there is no penalty.
    """

    num_predict: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repeat_last_n: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None


class OllamaRequest(ScheduledRequest, kw_only=True, forbid_unknown_fields=True):
    """Fields of both requests that generate. The answer is a stream unless ``stream`` is false.

    One without a message or a prompt loads the model, which is loaded: it is answered at once.

    Beyond Ollama's: priority, cache_salt, timeout and chat_template_kwargs, as in OpenAI's chat
    completions here.

    Attributes:
        format: The form of the text: ``json``, or a JSON Schema.
        think: Whether the model thinks first, or the effort.
        keep_alive: 0 with no prompt unloads in Ollama; the model stays loaded here.
    """

    stream: bool | None = None
    format: dict[str, Any] | str | None = None
    options: OllamaOptions | None = None
    think: bool | str | None = None
    keep_alive: float | str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class OllamaChatRequest(OllamaRequest, kw_only=True, forbid_unknown_fields=True):
    """``POST /api/chat``."""

    messages: list[OllamaMessage] = msgspec.field(default_factory=list)
    tools: list[dict[str, Any]] | None = None


class OllamaGenerateRequest(OllamaRequest, kw_only=True, forbid_unknown_fields=True):
    """``POST /api/generate``: a prompt through the chat template.

    Attributes:
        raw: Whether the prompt goes to the model as it is, without a template.
    """

    prompt: str = ""
    system: str | None = None
    raw: bool | None = None


class OllamaShowRequest(msgspec.Struct, forbid_unknown_fields=True):
    """``POST /api/show``."""

    model: str | None = None


class OllamaPullRequest(msgspec.Struct, forbid_unknown_fields=True):
    """``POST /api/pull``: of the model that is served, which is there."""

    model: str
    stream: bool | None = None


class OllamaPullAnswer(msgspec.Struct):
    """A line of the answer, or all of it."""

    status: str = "success"


class OllamaEmbedRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``POST /api/embed``: of a text or texts.

    Attributes:
        truncate: Whether a text longer than the context is cut, as it is unless this is false.
    """

    input: str | list[str]
    model: str | None = None
    truncate: bool | None = None
    dimensions: int | None = None


class OllamaEmbedAnswer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The vectors, and what they took; times in nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int
    warnings: list[str] | None = None


class OllamaEmbeddingsRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``POST /api/embeddings``: of one text."""

    prompt: str
    model: str | None = None


class OllamaEmbeddingsAnswer(msgspec.Struct):
    """The vector."""

    embedding: list[float]


class OllamaAnswer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A line of a stream, or the whole answer; counts and times, in nanoseconds, are in the last.

    A chat's text is in ``message``, a prompt's in ``response``.
    """

    model: str
    created_at: str
    done: bool
    message: OllamaMessage | None = None
    response: str | None = None
    thinking: str | None = None
    done_reason: str | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None
    warnings: list[str] | None = None
