"""The table of fields that requests may have beside those that their types honour.

By type; ``names.py`` has those of many types. ``docs/API.md`` is made from it and from the types.
"""

from pyengine.chat.messages import ContentPart, FunctionCall, Message, MessageToolCall
from pyengine.http.anthropic.schema import (
    CountTokensRequest,
    FunctionTool,
    MessagesRequest,
    Metadata,
    Text,
    Thinking,
    ThinkingParam,
    ToolResult,
    ToolUse,
)
from pyengine.http.fields.effects import (
    BOOKKEEPING,
    CACHING,
    ECHO,
    MEDIA,
    NO_MEDIA,
    OFF,
    ONLY_WITH,
    limit,
)
from pyengine.http.fields.names import (
    ANTHROPIC,
    BLOCK,
    CHAT,
    ITEM,
    LITELLM,
    LLAMA_CPP,
    MACHINE,
    MESSAGE,
    OLLAMA,
    OLLAMA_VECTORS,
    OPENAI,
    RESPONSES,
    SGLANG,
    VECTORS,
    VLLM,
    VLLM_STRUCTURED,
)
from pyengine.http.fields.policy import Alias, Hint, Refused, Table
from pyengine.http.ollama.schema import (
    OllamaCall,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaFunction,
    OllamaGenerateRequest,
    OllamaMessage,
    OllamaOptions,
    OllamaRequest,
    OllamaShowRequest,
)
from pyengine.http.openai.schema.chat import ChatRequest
from pyengine.http.openai.schema.common import GenerationRequest, StreamOptions
from pyengine.http.openai.schema.completions import CompletionRequest
from pyengine.http.openai.schema.embeddings import EmbeddingRequest
from pyengine.http.openai.schema.rerank import (
    DocumentObject,
    RelevanceRequest,
    RerankRequest,
    ScoreRequest,
)
from pyengine.http.openai.schema.responses import (
    FunctionCallItem,
    FunctionCallOutputItem,
    FunctionToolParam,
    InputPart,
    InputTokensRequest,
    MessageItem,
    ReasoningItem,
    ReasoningParam,
    ResponsesRequest,
    ResponseStreamOptions,
    TextJsonSchema,
    TextParam,
)
from pyengine.http.openai.schema.structured import (
    JsonObjectFormat,
    JsonSchemaObject,
    StructuredOutputs,
)
from pyengine.http.openai.schema.tokenize import ConversationFields, TokenizeRequest
from pyengine.http.openai.schema.tools import FunctionParam, ToolParam

TABLE: Table = {
    EmbeddingRequest: VECTORS,
    RelevanceRequest: {
        **OPENAI,
        **LITELLM,
        "request_id": BOOKKEEPING,
        "instruct": Alias("instruction"),
        "truncate_prompt_tokens": Refused("shorten the documents."),
        "max_tokens_per_doc": Refused("shorten the documents."),
        "max_chunks_per_doc": Refused("a document is one text."),
        "use_activation": Refused(neutral=(True,)),
        "mm_processor_kwargs": MEDIA,
    },
    RerankRequest: {"return_embeddings": OFF, "rank_fields": Refused("documents are texts.")},
    ScoreRequest: {
        "queries": Alias("text_1"),
        "documents": Alias("text_2"),
        "items": Alias("text_2"),
    },
    DocumentObject: {},
    OllamaEmbedRequest: OLLAMA_VECTORS,
    OllamaEmbeddingsRequest: OLLAMA_VECTORS,
    OllamaRequest: OLLAMA,
    OllamaGenerateRequest: {
        "suffix": Refused("the model does not fill gaps.", ("",)),
        "template": Refused("the model's own is used.", ("",)),
        "context": Refused("take /api/chat.", ([],)),
    },
    OllamaShowRequest: {
        "name": Alias("model"),
        "verbose": Hint("asks for tables that the answer does not have."),
        "system": Refused(neutral=("",)),
        "template": Refused(neutral=("",)),
        "options": Refused(neutral=({},)),
    },
    OllamaMessage: {"images": Refused("the model reads and writes text.", ([],))},
    OllamaCall: {"type": ECHO},
    OllamaFunction: {"index": ECHO},
    OllamaOptions: {
        **{name: effect for name, effect in LLAMA_CPP.items() if isinstance(effect, Refused)},
        **dict.fromkeys(
            (
                "num_ctx", "num_batch", "num_gpu", "main_gpu", "low_vram", "vocab_only",
                "use_mmap", "use_mlock", "num_thread", "numa", "f16_kv", "logits_all",
            ),
            MACHINE,
        ),
        "num_keep": Hint("is for a context that is shifted; here it never is."),
        "penalize_newline": Refused(neutral=(True,)),
        "mirostat_tau": Hint(ONLY_WITH.format("mirostat")),
        "mirostat_eta": Hint(ONLY_WITH.format("mirostat")),
    },
    CountTokensRequest: {
        **ANTHROPIC,
        **dict.fromkeys(
            (
                "max_tokens", "temperature", "top_p", "top_k", "stop_sequences", "stream",
                "metadata",
            ),
            Hint("says nothing about the prompt, whose tokens are counted."),
        ),
    },
    MessagesRequest: {**ANTHROPIC, "user": Hint("is said in 'metadata.user_id'.")},
    Text: BLOCK,
    Thinking: {"signature": ECHO},
    ToolUse: {"caller": Refused("the client calls all tools."), **BLOCK},
    ToolResult: {"is_error": Hint("is for the text of the result to say."), **BLOCK},
    FunctionTool: {
        "cache_control": CACHING,
        "defer_loading": OFF,
        "allowed_callers": Refused(neutral=(["direct"], [])),
        "eager_input_streaming": Hint("asks for what is done anyway."),
        "input_examples": Refused("write them into the description.", ([],)),
    },
    ThinkingParam: {
        "budget_tokens": Hint("is a target that the model is not held to."),
        "display": Refused(neutral=("summarized",)),
    },
    Metadata: {},
    GenerationRequest: {**OPENAI, **LITELLM, **VLLM, **SGLANG, **LLAMA_CPP},
    ChatRequest: CHAT,
    CompletionRequest: {
        "metadata": BOOKKEEPING,
        "suffix": Refused("the model does not fill gaps.", ("",)),
        "max_completion_tokens": Alias("max_tokens"),
        "stop_sequences": Alias("stop"),
        "max_tokens_to_sample": Alias("max_tokens"),
        "messages": Refused("say 'prompt', or take /v1/chat/completions."),
        "reasoning_effort": Refused("there is no chat template between."),
    },
    ResponsesRequest: {
        **OPENAI, **LITELLM, **VLLM, **SGLANG, **LLAMA_CPP, **RESPONSES,
        "prompt_logprobs": Refused("take /v1/completions."),
        "return_token_ids": OFF,
        "return_tokens_as_token_ids": OFF,
        "return_tokens": OFF,
        "max_new_tokens": Alias("max_output_tokens"),
        "n_predict": Alias("max_output_tokens", limit),
    },
    InputTokensRequest: {
        "conversation": RESPONSES["conversation"],
        "personality": Refused("say it in 'instructions'."),
    },
    TokenizeRequest: {
        "add_special": Alias("add_special_tokens"),
        "with_pieces": Refused("say 'return_token_strs'.", (False,)),
        "parse_special": Refused("special tokens are read as such.", (True,)),
    },
    ConversationFields: {
        "mm_processor_kwargs": MEDIA,
        "media_io_kwargs": MEDIA,
    },
    StreamOptions: {
        "include_obfuscation": OFF,
        "chunk_include_usage": Alias("continuous_usage_stats"),
    },
    ResponseStreamOptions: {
        "include_obfuscation": OFF,
        "include_usage": Hint("asks for what the last event has anyway."),
    },
    Message: MESSAGE,
    ContentPart: {
        "cache_control": CACHING,
        "prompt_cache_breakpoint": CACHING,
        "image_url": NO_MEDIA,
        "input_audio": NO_MEDIA,
        "video_url": NO_MEDIA,
        "audio_url": NO_MEDIA,
        "file": NO_MEDIA,
        "refusal": Refused("the model sees text."),
        "annotations": Refused("the model sees text.", ([],)),
        "provider_specific_fields": ECHO,
    },
    MessageToolCall: {
        "provider_specific_fields": ECHO,
        "cache_control": CACHING,
        "custom": Refused("tools are functions."),
        "extra_content": ECHO,
    },
    FunctionCall: {"provider_specific_fields": ECHO},
    ToolParam: {
        "cache_control": CACHING,
        "custom": Refused("tools are functions."),
        "defer_loading": OFF,
        "allowed_callers": Refused(neutral=([],)),
    },
    FunctionParam: {
        "cache_control": CACHING,
        "defer_loading": OFF,
        "output_schema": Refused("the model is told of 'parameters'."),
        "returns": Refused("the model is told of 'parameters'."),
    },
    FunctionToolParam: {
        "cache_control": CACHING,
        "defer_loading": OFF,
        "allowed_callers": Refused(neutral=([],)),
        "output_schema": Refused("the model is told of 'parameters'."),
    },
    StructuredOutputs: VLLM_STRUCTURED,
    JsonObjectFormat: {"schema": Refused("say type 'json_schema'.", ({},))},
    JsonSchemaObject: {"type": Refused(neutral=("json_schema",))},
    TextJsonSchema: {},
    TextParam: {"verbosity": Refused(neutral=("medium",))},
    ReasoningParam: {
        "summary": Hint("asks for a summary; the reasoning itself is in the answer."),
        "generate_summary": Hint("asks for a summary; the reasoning itself is in the answer."),
        "mode": Refused(),
        "context": Refused(),
        "max_tokens": Refused(),
        "enabled": Refused(neutral=(True,)),
    },
    InputPart: {
        **dict.fromkeys(("image_url", "file_id", "file_data", "file_url"), NO_MEDIA),
        "filename": MEDIA,
        "detail": MEDIA,
        "prompt_cache_breakpoint": CACHING,
        "annotations": ECHO,
        "logprobs": ECHO,
        "parsed": ECHO,
        "refusal": Refused("the model sees text."),
        **ITEM,
    },
    MessageItem: {"id": ECHO, "status": ECHO, "phase": ECHO, **ITEM},
    FunctionCallItem: {
        "id": ECHO,
        "status": ECHO,
        "parsed_arguments": ECHO,
        "async": OFF,
        "async_": OFF,
        "caller": Refused("the client calls all tools."),
        "namespace": Refused(),
        **ITEM,
    },
    FunctionCallOutputItem: {
        "id": ECHO,
        "status": ECHO,
        "name": ECHO,
        "caller": Refused("the client calls all tools."),
        "namespace": Refused(),
        **ITEM,
    },
    ReasoningItem: {
        "id": ECHO,
        "status": ECHO,
        "summary": Hint("is a summary; the model sees the reasoning itself, in 'content'."),
        **ITEM,
    },
}  # fmt: skip
