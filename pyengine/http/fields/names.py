"""The fields that are known by name, and their effects: those of each server, and of each API."""

from pyengine.http.fields.effects import (
    BOOKKEEPING,
    CACHING,
    CLIENT,
    ECHO,
    MEDIA,
    NO_MEDIA,
    OFF,
    ONE_TIER,
    ONLY_WITH,
    ROUTING,
    compact,
    limit,
    text_or_nothing,
)
from pyengine.http.fields.policy import Alias, Effect, Hint, Refused

# OpenAI's, for every endpoint that generates.
OPENAI: dict[str, Effect] = {
    "safety_identifier": BOOKKEEPING,
    "service_tier": ONE_TIER,
    "prompt_cache_key": CACHING,
    "prompt_cache_options": CACHING,
    "prompt_cache_retention": CACHING,
    "moderation": Refused("the server moderates nothing."),
}

LITELLM: dict[str, Effect] = {
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

VLLM: dict[str, Effect] = {
    "use_beam_search": OFF,
    "length_penalty": Refused("there is no beam search.", (1.0,)),
    "early_stopping": OFF,
    "spaces_between_special_tokens": Refused(neutral=(True,)),
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
    "guided_decoding_backend": Hint("names a backend of vLLM's; here each grammar has its own."),
    "guided_whitespace_pattern": Refused("say 'structured_outputs.whitespace'."),
    "request_id": Hint("does not name the request; the header x-request-id does."),
    "session_id": ROUTING,
    "truncation_side": Refused(neutral=("left",)),
    "min_reasoning_tokens": Refused(neutral=(0,)),
}

# Of vLLM's ``structured_outputs``.
VLLM_STRUCTURED: dict[str, Effect] = {
    "disable_any_whitespace": Alias("whitespace", compact),
    "disable_additional_properties": Refused(
        "write 'additionalProperties: false' into the schema.", (False,)
    ),
    "whitespace_pattern": Refused("say 'whitespace'."),
    "disable_fallback": Hint("is about vLLM's backends; here each grammar has its own."),
}

SGLANG: dict[str, Effect] = {
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

LLAMA_CPP: dict[str, Effect] = {
    "n_predict": Alias("max_tokens", limit),
    "repeat_penalty": Alias("repetition_penalty"),
    "grammar": Alias("ebnf", text_or_nothing),
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

CHAT: dict[str, Effect] = {
    "functions": Refused("say 'tools'.", ([],)),
    "function_call": Refused("say 'tool_choice'.", ("none", "auto")),
    "modalities": Refused("the model writes text.", (["text"],)),
    "audio": NO_MEDIA,
    "best_of": Refused("say 'n'.", (1,)),
    "web_search_options": Refused("the server searches nothing."),
    "verbosity": Refused(neutral=("medium",)),
    # vLLM
    "echo": OFF,
    "add_special_tokens": Refused("the chat template writes them.", (False,)),
    "documents": Refused("put them into messages.", ([],)),
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

MESSAGE: dict[str, Effect] = {
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

RESPONSES: dict[str, Effect] = {
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

ITEM: dict[str, Effect] = {
    "provider_specific_fields": ECHO,
    "cache_control": CACHING,
    "created_by": ECHO,
}

# Anthropic's, of messages and of counting their tokens.
ANTHROPIC: dict[str, Effect] = {
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
BLOCK: dict[str, Effect] = {"cache_control": CACHING, "citations": ECHO}

OLLAMA: dict[str, Effect] = {
    "keep_alive": Hint("is how long a model stays loaded; here it always is."),
    "logprobs": OFF,
    "top_logprobs": Refused(neutral=(0,)),
    "truncate": Refused(neutral=(False,)),
    "shift": Refused(neutral=(False,)),
    "images": Refused("the model reads and writes text.", ([],)),
    "name": Alias("model"),
}
MACHINE = Hint("is about the machine, which the server's own settings are for.")

VECTORS: dict[str, Effect] = {
    **OPENAI,
    **LITELLM,
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
OLLAMA_VECTORS: dict[str, Effect] = {
    "keep_alive": OLLAMA["keep_alive"],
    "options": Hint("is about answers and the machine; a text's vector has no options."),
    "name": Alias("model"),
}
