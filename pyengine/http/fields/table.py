"""The table of fields that requests may have beside those that their types honour.

By OpenAI's, vLLM's, SGLang's, llama.cpp's, LiteLLM's and Anthropic's names. ``docs/API.md`` is made
from it and from the types.
"""

from typing import Any

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
from pyengine.http.fields.policy import Alias, Effect, Hint, Refused, Table
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
from pyengine.http.openai.schema.structured import JsonSchemaObject
from pyengine.http.openai.schema.tokenize import ConversationFields, TokenizeRequest
from pyengine.http.openai.schema.tools import FunctionParam, ToolParam

BOOKKEEPING = Hint("is bookkeeping; nothing is done with it.")
ONE_TIER = Hint("chooses among OpenAI's tiers of service; here there is one.")
CACHING = Hint("is a hint for a cache; here prefixes are cached by what they hold.")
ROUTING = Hint("is for a router of several servers; this server answers itself.")
ECHO = Hint("is an echo of an earlier answer; the model does not see it.")
CLIENT = Hint("is for the client's own library; the server does nothing with it.")
MEDIA = Hint("is about images and sound; the model reads text.")
NO_MEDIA = Refused("the model reads and writes text.")
ONLY_WITH = "changes nothing without '{}', which is not supported."
OFF = Refused(neutral=(False,))


def _text_or_nothing(given: Any) -> Any:
    return given or None


def _limit(given: Any) -> Any:
    """A number of tokens; llama.cpp's -1 is no limit."""
    return None if given == -1 and not isinstance(given, bool) else given


# OpenAI's, for every endpoint that generates.
_OPENAI: dict[str, Effect] = {
    "safety_identifier": BOOKKEEPING,
    "service_tier": ONE_TIER,
    "prompt_cache_key": CACHING,
    "prompt_cache_options": CACHING,
    "prompt_cache_retention": CACHING,
    "moderation": Refused("the server moderates nothing."),
}

_LITELLM: dict[str, Effect] = {
    **dict.fromkeys(
        (
            "litellm_metadata", "litellm_call_id", "litellm_session_id", "litellm_trace_id",
            "litellm_logging_obj", "no-log", "tags", "deployment_id", "drop_params",
            "additional_drop_params", "allowed_openai_params", "num_retries", "max_retries",
            "cache", "caching", "ttl", "custom_llm_provider", "api_version", "extra_headers",
            "provider_specific_fields",
        ),
        CLIENT,
    ),
    "fallbacks": ROUTING,
    "context_window_fallback_dict": ROUTING,
    "guardrails": Refused("the server has no guardrails."),
    "mock_response": Refused("answers are the model's."),
    "extra_body": Refused("write its fields into the body itself."),
}  # fmt: skip

_VLLM: dict[str, Effect] = {
    "use_beam_search": OFF,
    "length_penalty": Refused("there is no beam search.", (1.0,)),
    "early_stopping": OFF,
    "spaces_between_special_tokens": Refused(neutral=(True,)),
    "logits_processors": Refused("code of clients is not run.", ([],)),
    "vllm_xargs": Refused("there are no extensions to read them.", ({},)),
    "prompt_embeds": Refused("prompts are text or token ids."),
    "logprob_token_ids": Refused("ask for 'top_logprobs'.", ([],)),
    "watermarking": OFF,
    "repetition_detection": Refused(),
    "thinking_token_budget": Refused(neutral=(-1,)),
    "return_prompt_text": OFF,
    "return_routed_experts": OFF,
    "kv_transfer_params": Refused("there is no transfer of caches.", ({},)),
    "ec_transfer_params": Refused("there is no transfer of caches.", ({},)),
    "mm_processor_kwargs": MEDIA,
    "media_io_kwargs": MEDIA,
    "guided_whitespace_pattern": Refused("say 'structured_outputs.whitespace'."),
    "request_id": Hint("does not name the request; the header x-request-id does."),
    "session_id": ROUTING,
    "truncation_side": Refused(neutral=("left",)),
    "min_reasoning_tokens": Refused(neutral=(0,)),
}

_SGLANG: dict[str, Effect] = {
    "max_new_tokens": Alias("max_tokens"),
    "sampling_seed": Alias("seed"),
    "no_stop_trim": Alias("include_stop_str_in_output"),
    "stop_regex": Refused("say 'stop', or a grammar.", ([], "")),
    "lora_path": Refused("adapters are not served.", ("", [])),
    "session_params": Refused(neutral=({},)),
    "custom_logit_processor": Refused("code of clients is not run."),
    "custom_params": Refused("there is nothing to read them.", ({},)),
    "return_hidden_states": OFF,
    "return_cached_tokens_details": Hint("asks for what 'usage' says of cached tokens."),
    "routed_experts_start_len": Hint(ONLY_WITH.format("return_routed_experts")),
    "rid": BOOKKEEPING,
    "extra_key": CACHING,
    "custom_labels": BOOKKEEPING,
    "images_config": MEDIA,
    "ngram_corpus_id": Hint("chooses drafts, which change no token."),
    **dict.fromkeys(
        (
            "bootstrap_host", "bootstrap_port", "bootstrap_room", "routed_dp_rank",
            "disagg_prefill_dp_rank", "data_parallel_rank",
        ),
        ROUTING,
    ),
}  # fmt: skip

_LLAMA_CPP: dict[str, Effect] = {
    "n_predict": Alias("max_tokens", _limit),
    "repeat_penalty": Alias("repetition_penalty"),
    "grammar": Alias("ebnf", _text_or_nothing),
    "repeat_last_n": Refused("penalties look at the whole text.", (-1,)),
    "penalize_nl": Refused(neutral=(True,)),
    "tfs_z": Refused(neutral=(1.0,)),
    "mirostat": Refused("say 'typical_p', 'top_p' or 'min_p'.", (0,)),
    "mirostat_tau": Hint(ONLY_WITH.format("mirostat")),
    "mirostat_eta": Hint(ONLY_WITH.format("mirostat")),
    "adaptive_target": Refused(neutral=(-1.0,)),
    "adaptive_decay": Hint(ONLY_WITH.format("adaptive_target")),
    "min_keep": Refused(neutral=(0, 1)),
    "samplers": Refused("the rules have one order; docs/API.md says which."),
    "n_probs": Refused("say 'logprobs'.", (0,)),
    "post_sampling_probs": OFF,
    "n_indent": Refused(neutral=(0,)),
    "n_keep": Hint("is for a context that is shifted; here it never is."),
    "n_discard": Hint("is for a context that is shifted; here it never is."),
    "id_slot": ROUTING,
    "cache_prompt": CACHING,
    "n_cache_reuse": CACHING,
    "t_max_predict_ms": Refused("say 'timeout', in seconds.", (0, -1)),
    "response_fields": Refused(neutral=([],)),
    "return_tokens": Alias("return_token_ids"),
    "return_progress": OFF,
    "timings_per_token": OFF,
    "lora": Refused("adapters are not served.", ([],)),
    "grammar_lazy": OFF,
    "grammar_triggers": Refused("say 'structural_tag'.", ([],)),
    "preserved_tokens": Refused("say 'skip_special_tokens'.", ([],)),
    **dict.fromkeys(
        ("speculative.n_max", "speculative.n_min", "speculative.p_min"),
        Hint("is about drafts, which change no token."),
    ),
}

_CHAT: dict[str, Effect] = {
    "functions": Refused("say 'tools'.", ([],)),
    "function_call": Refused("say 'tool_choice'.", ("none", "auto")),
    "modalities": Refused("the model writes text.", (["text"],)),
    "audio": NO_MEDIA,
    "web_search_options": Refused("the server searches nothing."),
    "verbosity": Refused(neutral=("medium",)),
    # vLLM
    "echo": OFF,
    "add_special_tokens": Refused("the chat template writes them.", (False,)),
    "documents": Refused("put them into messages.", ([],)),
    "chat_template": Refused("the model's own is used."),
    # SGLang
    "separate_reasoning": Refused(neutral=(True,)),
    "stream_reasoning": Refused(neutral=(True,)),
    "max_dynamic_patch": MEDIA,
    "min_dynamic_patch": MEDIA,
    # llama.cpp
    "reasoning_format": Refused("reasoning is told apart.", ("auto", "deepseek")),
    "thinking_forced_open": OFF,
    "reasoning_in_content": OFF,
    "reasoning_budget_tokens": Refused(neutral=(-1,)),
    "parse_tool_calls": Refused(neutral=(True,)),
    "generation_prompt": Refused(neutral=("",)),
    "chat_format": Refused("the model's own is used."),
    # LiteLLM's and Anthropic's
    "stop_sequences": Alias("stop"),
    "thinking": Refused("say 'reasoning_effort' or 'chat_template_kwargs'."),
    "system": Refused("write a message with the role 'system'."),
    "betas": CLIENT,
    "anthropic_version": CLIENT,
    "cache_control": CACHING,
    "container": Refused("the server runs no code."),
    "mcp_servers": Refused("the server calls no tools itself.", ([],)),
}

_MESSAGE: dict[str, Effect] = {
    "cache_control": CACHING,
    "id": ECHO,
    "provider_specific_fields": ECHO,
    "thinking_blocks": ECHO,
    "reasoning": Alias("reasoning_content"),
    "reasoning_details": ECHO,
    "tool_responses": ECHO,
    "citations": ECHO,
    "prefix": Refused(neutral=(False,)),
}

_RESPONSES: dict[str, Effect] = {
    "conversation": Refused("say 'previous_response_id', or send the items in 'input'."),
    "context_management": Refused("the server shortens no conversations."),
    "max_tool_calls": Refused("the server calls no tools itself."),
    "prompt": Refused("the server keeps no prompts; say 'instructions' and 'input'."),
    "max_tokens": Alias("max_output_tokens"),
    "enable_response_messages": OFF,
    "previous_input_messages": Refused("send them in 'input'."),
    "previous_response": Refused("send its items in 'input'."),
    "response_format": Refused("say 'text.format'."),
    "reasoning_effort": Refused("say 'reasoning.effort'."),
}

_ITEM: dict[str, Effect] = {
    "provider_specific_fields": ECHO,
    "cache_control": CACHING,
    "created_by": ECHO,
}

# Anthropic's, of messages and of counting their tokens.
_ANTHROPIC: dict[str, Effect] = {
    "cache_control": CACHING,
    "betas": CLIENT,
    "anthropic_version": CLIENT,
    "anthropic_beta": CLIENT,
    "service_tier": ONE_TIER,
    "inference_geo": ROUTING,
    "speed": ONE_TIER,
    "container": Refused("the server runs no code."),
    "mcp_servers": Refused("the server calls no tools itself.", ([],)),
    "context_management": Refused("the server shortens no conversations.", ({},)),
    "output_config": Refused("say what is wanted in a message.", ({},)),
    "output_format": Refused("say 'tools', or take /v1/chat/completions."),
    "stop": Alias("stop_sequences"),
}
_BLOCK: dict[str, Effect] = {"cache_control": CACHING, "citations": ECHO}

_OLLAMA: dict[str, Effect] = {
    "keep_alive": Hint("is how long a model stays loaded; here it always is."),
    "logprobs": OFF,
    "top_logprobs": Refused(neutral=(0,)),
    "truncate": Refused(neutral=(False,)),
    "shift": Refused(neutral=(False,)),
    "images": Refused("the model reads and writes text.", ([],)),
    "name": Alias("model"),
}
_MACHINE = Hint("is about the machine, which the server's own settings are for.")

_VECTORS: dict[str, Effect] = {
    **_OPENAI,
    **_LITELLM,
    "request_id": BOOKKEEPING,
    "use_activation": Alias("normalize"),
    "truncation_side": Refused(neutral=("left",)),
    "messages": Refused("embed texts: give them as 'input'.", ([],)),
    "embed_dtype": Refused("numbers are float32.", ("float32",)),
    "endianness": Refused("numbers are little-endian.", ("native", "little")),
    "input_type": Refused("write the model's instruction into the text."),
    "task": Refused("write the model's instruction into the text."),
    "mm_processor_kwargs": MEDIA,
}
_OLLAMA_VECTORS: dict[str, Effect] = {
    "keep_alive": _OLLAMA["keep_alive"],
    "options": Hint("is about answers and the machine; a text's vector has no options."),
    "name": Alias("model"),
}

TABLE: Table = {
    EmbeddingRequest: _VECTORS,
    RelevanceRequest: {
        **_OPENAI,
        **_LITELLM,
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
    OllamaEmbedRequest: _OLLAMA_VECTORS,
    OllamaEmbeddingsRequest: _OLLAMA_VECTORS,
    OllamaRequest: _OLLAMA,
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
        **{name: effect for name, effect in _LLAMA_CPP.items() if isinstance(effect, Refused)},
        **dict.fromkeys(
            (
                "num_ctx", "num_batch", "num_gpu", "main_gpu", "low_vram", "vocab_only",
                "use_mmap", "use_mlock", "num_thread", "numa", "f16_kv", "logits_all",
            ),
            _MACHINE,
        ),
        "num_keep": Hint("is for a context that is shifted; here it never is."),
        "penalize_newline": Refused(neutral=(True,)),
        "mirostat_tau": Hint(ONLY_WITH.format("mirostat")),
        "mirostat_eta": Hint(ONLY_WITH.format("mirostat")),
    },
    CountTokensRequest: {
        **_ANTHROPIC,
        **dict.fromkeys(
            (
                "max_tokens", "temperature", "top_p", "top_k", "stop_sequences", "stream",
                "metadata",
            ),
            Hint("says nothing about the prompt, whose tokens are counted."),
        ),
    },
    MessagesRequest: {**_ANTHROPIC, "user": Hint("is said in 'metadata.user_id'.")},
    Text: _BLOCK,
    Thinking: {"signature": ECHO},
    ToolUse: {"caller": Refused("the client calls all tools."), **_BLOCK},
    ToolResult: {"is_error": Hint("is for the text of the result to say."), **_BLOCK},
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
    GenerationRequest: {**_OPENAI, **_LITELLM, **_VLLM, **_SGLANG, **_LLAMA_CPP},
    ChatRequest: _CHAT,
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
        **_OPENAI, **_LITELLM, **_VLLM, **_SGLANG, **_LLAMA_CPP, **_RESPONSES,
        "prompt_logprobs": Refused("take /v1/completions."),
        "return_token_ids": OFF,
        "return_tokens_as_token_ids": OFF,
        "return_tokens": OFF,
        "max_new_tokens": Alias("max_output_tokens"),
        "n_predict": Alias("max_output_tokens", _limit),
    },
    InputTokensRequest: {
        "conversation": _RESPONSES["conversation"],
        "personality": Refused("say it in 'instructions'."),
    },
    TokenizeRequest: {
        "add_special": Alias("add_special_tokens"),
        "with_pieces": Refused("say 'return_token_strs'.", (False,)),
        "parse_special": Refused("special tokens are read as such.", (True,)),
    },
    ConversationFields: {
        "chat_template": Refused("the model's own is used."),
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
    Message: _MESSAGE,
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
        **_ITEM,
    },
    MessageItem: {"id": ECHO, "status": ECHO, "phase": ECHO, **_ITEM},
    FunctionCallItem: {
        "id": ECHO,
        "status": ECHO,
        "parsed_arguments": ECHO,
        "async": OFF,
        "async_": OFF,
        "caller": Refused("the client calls all tools."),
        "namespace": Refused(),
        **_ITEM,
    },
    FunctionCallOutputItem: {
        "id": ECHO,
        "status": ECHO,
        "name": ECHO,
        "caller": Refused("the client calls all tools."),
        "namespace": Refused(),
        **_ITEM,
    },
    ReasoningItem: {
        "id": ECHO,
        "status": ECHO,
        "summary": Hint("is a summary; the model sees the reasoning itself, in 'content'."),
        **_ITEM,
    },
}  # fmt: skip
