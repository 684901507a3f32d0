"""The fields that requests may have beside those that their types honour: of servers and clients,
then of each type. ``docs/API.md`` is made from this table and from the types.
"""

from pyengine.chat.messages import ContentPart, FunctionCall, Message, MessageToolCall
from pyengine.http.anthropic import schema as anthropic
from pyengine.http.fields.effects import alias, compact, hint, limit, refused, text_or_nothing
from pyengine.http.fields.policy import Alias, Refused, Table
from pyengine.http.ollama import schema as ollama
from pyengine.http.openai.schema import (
    chat,
    common,
    completions,
    embeddings,
    rerank,
    responses,
    structured,
    tokenize,
    tools,
)

OPENAI = refused("moderation") | hint(
    "safety_identifier service_tier prompt_cache_key prompt_cache_options prompt_cache_retention"
)
LITELLM = refused("guardrails mock_response extra_body") | hint(
    "litellm_metadata litellm_call_id litellm_session_id litellm_trace_id litellm_logging_obj"
    " no-log tags deployment_id drop_params additional_drop_params allowed_openai_params"
    " num_retries max_retries cache caching ttl custom_llm_provider api_version extra_headers"
    " provider_specific_fields fallbacks context_window_fallback_dict"
)
VLLM = {
    **refused("prompt_embeds repetition_detection"),
    **refused("use_beam_search early_stopping watermarking return_prompt_text", False),
    **refused("return_routed_experts", False),
    **refused("vllm_xargs kv_transfer_params ec_transfer_params", {}),
    **refused("length_penalty", 1.0),
    **refused("spaces_between_special_tokens", True),
    **refused("logprob_token_ids", [], say="top_logprobs"),
    **refused("thinking_token_budget", -1),
    **refused("min_reasoning_tokens", 0),
    **refused("truncation_side", "left"),
    **refused("guided_whitespace_pattern", say="structured_outputs.whitespace"),
    **hint("mm_processor_kwargs media_io_kwargs guided_decoding_backend request_id session_id"),
}
SGLANG = {
    **alias(max_new_tokens="max_tokens", sampling_seed="seed"),
    **alias(no_stop_trim="include_stop_str_in_output"),
    **refused("custom_logit_processor"),
    **refused("session_params custom_params", {}),
    **refused("return_hidden_states", False),
    **refused("lora_path", "", []),
    **refused("stop_regex", [], "", say="stop"),
    **hint("return_cached_tokens_details routed_experts_start_len rid extra_key custom_labels"),
    **hint("images_config ngram_corpus_id bootstrap_host bootstrap_port bootstrap_room"),
    **hint("routed_dp_rank disagg_prefill_dp_rank data_parallel_rank"),
}
LLAMA_CPP = {
    **alias(repeat_penalty="repetition_penalty", return_tokens="return_token_ids"),
    "n_predict": Alias("max_tokens", limit),
    "grammar": Alias("ebnf", text_or_nothing),
    **refused("samplers"),
    **refused("post_sampling_probs return_progress timings_per_token grammar_lazy", False),
    **refused("response_fields lora", []),
    **refused("penalize_nl", True),
    **refused("n_indent", 0),
    **refused("min_keep", 0, 1),
    **refused("repeat_last_n", -1),
    **refused("adaptive_target", -1.0),
    **refused("tfs_z", 1.0),
    **refused("mirostat", 0, say="typical_p"),
    **refused("n_probs", 0, say="logprobs"),
    **refused("t_max_predict_ms", 0, -1, say="timeout"),
    **refused("grammar_triggers", [], say="structural_tag"),
    **refused("preserved_tokens", [], say="skip_special_tokens"),
    **hint("mirostat_tau mirostat_eta adaptive_decay n_keep n_discard id_slot cache_prompt"),
    **hint("n_cache_reuse speculative.n_max speculative.n_min speculative.p_min"),
}
SERVERS = {**OPENAI, **LITELLM, **VLLM, **SGLANG, **LLAMA_CPP}
ANTHROPIC = {
    **alias(stop="stop_sequences"),
    **refused("container"),
    **refused("context_management output_config", {}),
    **refused("mcp_servers", []),
    **refused("output_format", say="tools"),
    **hint("cache_control betas anthropic_version anthropic_beta service_tier inference_geo speed"),
}
OLLAMA = {
    **alias(name="model"),
    **refused("logprobs truncate shift", False),
    **refused("top_logprobs", 0),
    **refused("images", []),
    **hint("keep_alive"),
}
OLLAMA_VECTORS = alias(name="model") | hint("keep_alive options")
BLOCK = hint("cache_control citations")
ITEM = hint("provider_specific_fields cache_control created_by")

TABLE: Table = {
    common.GenerationRequest: SERVERS,
    chat.ChatRequest: {
        **alias(stop_sequences="stop"),
        **refused("audio web_search_options chat_format container"),
        **refused("thinking", say="reasoning_effort"),
        **refused("system", say="messages"),
        **refused("functions", [], say="tools"),
        **refused("function_call", "none", "auto", say="tool_choice"),
        **refused("best_of", 1, say="n"),
        **refused("echo add_special_tokens thinking_forced_open reasoning_in_content", False),
        **refused("separate_reasoning stream_reasoning parse_tool_calls", True),
        **refused("documents", [], say="messages"),
        **refused("mcp_servers", []),
        **refused("modalities", ["text"]),
        **refused("verbosity", "medium"),
        **refused("reasoning_format", "auto", "deepseek"),
        **refused("reasoning_budget_tokens", -1),
        **refused("generation_prompt", ""),
        **hint("max_dynamic_patch min_dynamic_patch betas anthropic_version cache_control"),
    },
    completions.CompletionRequest: {
        **alias(max_completion_tokens="max_tokens", max_tokens_to_sample="max_tokens"),
        **alias(stop_sequences="stop"),
        **refused("reasoning_effort"),
        **refused("messages", say="prompt"),
        **refused("suffix", ""),
        **hint("metadata"),
    },
    responses.ResponsesRequest: {
        **SERVERS,
        **alias(max_tokens="max_output_tokens", max_new_tokens="max_output_tokens"),
        "n_predict": Alias("max_output_tokens", limit),
        **refused("context_management max_tool_calls prompt_logprobs"),
        **refused("enable_response_messages return_token_ids return_tokens", False),
        **refused("return_tokens_as_token_ids", False),
        **refused("conversation", say="previous_response_id"),
        **refused("prompt", say="instructions"),
        **refused("previous_input_messages previous_response", say="input"),
        **refused("response_format", say="text.format"),
        **refused("reasoning_effort", say="reasoning.effort"),
    },
    responses.InputTokensRequest: {
        **refused("conversation", say="previous_response_id"),
        **refused("personality", say="instructions"),
    },
    responses.ResponseStreamOptions: {
        **refused("include_obfuscation", False),
        **hint("include_usage"),
    },
    responses.TextJsonSchema: {},
    responses.TextParam: refused("verbosity", "medium"),
    responses.ReasoningParam: {
        **refused("mode context max_tokens"),
        **refused("enabled", True),
        **hint("summary generate_summary"),
    },
    responses.InputPart: {
        **refused("image_url file_id file_data file_url refusal"),
        **hint("filename detail prompt_cache_breakpoint annotations logprobs parsed"),
        **ITEM,
    },
    responses.MessageItem: hint("id status phase") | ITEM,
    responses.FunctionCallItem: {
        **refused("caller namespace"),
        **refused("async async_", False),
        **hint("id status parsed_arguments"),
        **ITEM,
    },
    responses.FunctionCallOutputItem: {
        **refused("caller namespace"),
        **hint("id status name"),
        **ITEM,
    },
    responses.ReasoningItem: hint("id status summary") | ITEM,
    responses.FunctionToolParam: {
        **refused("output_schema", say="parameters"),
        **refused("defer_loading", False),
        **refused("allowed_callers", []),
        **hint("cache_control"),
    },
    common.StreamOptions: {
        **alias(chunk_include_usage="continuous_usage_stats"),
        **refused("include_obfuscation", False),
    },
    Message: {
        **alias(reasoning="reasoning_content"),
        **refused("prefix", False),
        **hint("cache_control id provider_specific_fields thinking_blocks reasoning_details"),
        **hint("tool_responses citations"),
    },
    ContentPart: {
        **refused("image_url input_audio video_url audio_url file refusal"),
        **refused("annotations", []),
        **hint("cache_control prompt_cache_breakpoint provider_specific_fields"),
    },
    MessageToolCall: {
        **refused("custom", say="function"),
        **hint("provider_specific_fields cache_control extra_content"),
    },
    FunctionCall: hint("provider_specific_fields"),
    tools.ToolParam: {
        **refused("custom", say="function"),
        **refused("defer_loading", False),
        **refused("allowed_callers", []),
        **hint("cache_control"),
    },
    tools.FunctionParam: {
        **refused("output_schema returns", say="parameters"),
        **refused("defer_loading", False),
        **hint("cache_control"),
    },
    structured.StructuredOutputs: {
        "disable_any_whitespace": Alias("whitespace", compact),
        **refused("disable_additional_properties", False),
        **refused("whitespace_pattern", say="whitespace"),
        **hint("disable_fallback"),
    },
    structured.JsonObjectFormat: refused("schema", {}, say="json_schema"),
    structured.JsonSchemaObject: refused("type", "json_schema"),
    tokenize.TokenizeRequest: {
        **alias(add_special="add_special_tokens"),
        **refused("parse_special", True),
        **refused("with_pieces", False, say="return_token_strs"),
    },
    tokenize.ConversationFields: hint("mm_processor_kwargs media_io_kwargs"),
    embeddings.EmbeddingRequest: {
        **OPENAI,
        **LITELLM,
        **alias(use_activation="normalize"),
        **refused("input_type task", say="input"),
        **refused("messages", [], say="input"),
        **refused("truncation_side", "left"),
        **refused("embed_dtype", "float32"),
        **refused("endianness", "native", "little"),
        **hint("request_id mm_processor_kwargs"),
    },
    rerank.RelevanceRequest: {
        **OPENAI,
        **LITELLM,
        **alias(instruct="instruction"),
        **refused("truncate_prompt_tokens max_tokens_per_doc max_chunks_per_doc"),
        **refused("use_activation", True),
        **hint("request_id mm_processor_kwargs"),
    },
    rerank.RerankRequest: refused("rank_fields") | refused("return_embeddings", False),
    rerank.ScoreRequest: alias(queries="text_1", documents="text_2", items="text_2"),
    rerank.DocumentObject: {},
    anthropic.CountTokensRequest: {
        **ANTHROPIC,
        **hint("max_tokens temperature top_p top_k stop_sequences stream metadata"),
    },
    anthropic.MessagesRequest: ANTHROPIC | hint("user"),
    anthropic.Text: BLOCK,
    anthropic.Thinking: hint("signature"),
    anthropic.ToolUse: refused("caller") | BLOCK,
    anthropic.ToolResult: hint("is_error") | BLOCK,
    anthropic.FunctionTool: {
        **refused("defer_loading", False),
        **refused("allowed_callers", ["direct"], []),
        **refused("input_examples", [], say="description"),
        **hint("cache_control eager_input_streaming"),
    },
    anthropic.ThinkingParam: refused("display", "summarized") | hint("budget_tokens"),
    anthropic.Metadata: {},
    ollama.OllamaRequest: OLLAMA,
    ollama.OllamaGenerateRequest: refused("suffix template", "") | refused("context", []),
    ollama.OllamaEmbedRequest: OLLAMA_VECTORS,
    ollama.OllamaEmbeddingsRequest: OLLAMA_VECTORS,
    ollama.OllamaShowRequest: {
        **alias(name="model"),
        **refused("system template", ""),
        **refused("options", {}),
        **hint("verbose"),
    },
    ollama.OllamaMessage: refused("images", []),
    ollama.OllamaCall: hint("type"),
    ollama.OllamaFunction: hint("index"),
    ollama.OllamaOptions: {
        **{name: effect for name, effect in LLAMA_CPP.items() if isinstance(effect, Refused)},
        **refused("penalize_newline", True),
        **hint("num_ctx num_batch num_gpu main_gpu low_vram vocab_only use_mmap use_mlock"),
        **hint("num_thread numa f16_kv logits_all num_keep mirostat_tau mirostat_eta"),
    },
}
