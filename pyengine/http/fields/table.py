"""The fields that requests may have beside those that their types honour.

A name has one effect, wherever it stands, but for the exceptions of single types. ``docs/API.md``
is made from this table and from the types.
"""

from functools import cache

import msgspec

from pyengine.chat.messages import ContentPart, Message
from pyengine.http.anthropic import schema as anthropic
from pyengine.http.extensions import extensions
from pyengine.http.fields.effects import Effects, Table, alias, hint, refused
from pyengine.http.openai.schema import rerank, responses, structured, tokenize, tools
from pyengine.http.openai.schema.common import ReasoningParam

_HINTS = hint("""
    access_programs adaptive_decay additional_drop_params allowed_openai_params anthropic_beta
    anthropic_version api_version background_options backend_sampling betas bootstrap_host
    bootstrap_port bootstrap_room cache cache_control cache_prompt caching citations client_metadata
    context_window_fallback_dict created_by custom_labels custom_llm_provider data_parallel_rank
    defer_loading deployment_id detail diagnostics disable_fallback disagg_prefill_dp_rank
    drop_params eager_input_streaming extra_content extra_headers extra_key fallbacks filename
    generate_summary guided_decoding_backend id id_slot images_config inference_geo is_error
    litellm_call_id litellm_logging_obj litellm_metadata litellm_session_id litellm_trace_id
    max_characters max_dynamic_patch max_retries media_io_kwargs metadata min_dynamic_patch
    mirostat_eta mirostat_tau mm_payload mm_processor_kwargs n_cache_reuse n_discard n_keep
    ngram_corpus_id no-log num_retries phase prompt_cache_breakpoint prompt_cache_key
    prompt_cache_options prompt_cache_retention provider_specific_fields reasoning_details
    request_id return_cached_tokens_details rid routed_dp_rank routed_experts_prompt_start
    routed_experts_start_len safety_identifier service_tier session_id speculative.n_max
    speculative.n_min speculative.p_min speed sse_ping_interval status summary tags task_budget
    thinking_blocks thread tool_responses toolset_name ttl user_profile_id workspace_id
""")
_NAMES: Effects = {
    **alias("add_special_tokens", "add_special"),
    **alias("continuous_usage_stats", "chunk_include_usage"),
    **alias("ebnf", "grammar", ("", None)),
    **alias("include_stop_str_in_output", "no_stop_trim"),
    **alias("instruction", "instruct"),
    **alias("max_tokens max_output_tokens", "max_new_tokens n_predict", (-1, None)),
    **alias("max_tokens", "max_completion_tokens max_tokens_to_sample"),
    **alias("max_output_tokens", "max_tokens"),
    **alias("min_tokens", "min_new_tokens"),
    **alias("n", "n_cmpl"),
    **alias("normalize", "use_activation"),
    **alias("reasoning_content", "reasoning"),
    **alias("repetition_penalty", "repeat_penalty"),
    **alias("return_token_ids", "return_tokens"),
    **alias("seed", "random_seed sampling_seed"),
    **alias("stop", "stop_sequences"),
    **alias("thinking_token_budget", "thinking_budget thinking_budget_tokens"),
    **alias("thinking_token_budget", "reasoning_budget reasoning_budget_tokens"),
    **alias("typical_p", "typ_p"),
    **alias("whitespace", "disable_any_whitespace", (True, "compact"), (False, None)),
}
_REFUSED: Effects = {
    **refused("""
        audio audio_url chat_format container context_management custom_logit_processor file
        file_data file_id file_url guardrails image_url input_audio max_chunks_per_doc
        max_tokens_per_doc mock_response moderation prompt_embeds prompt_logprobs rank_fields
        refusal repetition_detection samplers video_url web_search_options
    """),
    **refused(
        """
        async async_ disable_additional_properties early_stopping echo enable_response_messages
        grammar_lazy padding post_sampling_probs prefix reasoning_in_content return_embeddings
        return_hidden_states return_meta_info return_mm_kwargs return_progress return_prompt_text
        return_prompt_token_ids return_routed_experts return_token_ids return_token_offsets
        return_tokens_as_token_ids return_weight_versions thinking_forced_open timings_per_token
        use_audio_in_video use_beam_search watermarking
        """,
        False,
    ),
    **refused("include_reasoning parse_special parse_tool_calls penalize_nl", True),
    **refused("separate_reasoning spaces_between_special_tokens stream_reasoning", True),
    **refused("custom_params ec_transfer_params extra_body kv_transfer_params", {}),
    **refused("session_params vllm_xargs", {}),
    **refused("lora mcp_servers response_fields", []),
    **refused("min_reasoning_tokens n_indent", 0),
    **refused("length_penalty tfs_z", 1.0),
    **refused("adaptive_target", -1.0),
    **refused("add_special_tokens", False),
    **refused("allowed_callers", ["direct"], []),
    **refused("between_tools", "auto"),
    **refused("caller", {"type": "direct"}),
    **refused("embed_dtype", "float32"),
    **refused("endianness", "native", "little"),
    **refused("generation_prompt", ""),
    **refused("lora_path", "", []),
    **refused("min_keep", 0, 1),
    **refused("modalities", ["text"]),
    **refused("reasoning_format", "auto", "deepseek"),
    **refused("stream_interval", 1),
    **refused("thinking_token_budget truncate_prompt_tokens", -1),
    **refused("truncation_side", "left"),
    **refused("best_of", 1, say="n"),
    **refused("documents", [], say="messages"),
    **refused("grammar_triggers", [], say="structural_tag"),
    **refused("guided_whitespace_pattern", say="structured_outputs.whitespace"),
    **refused("input system", say="messages"),
    **refused("input_examples", [], say="description"),
    **refused("input_type task", say="input"),
    **refused("logprob_token_ids", [], say="top_logprobs logprobs"),
    **refused("messages", [], say="prompt input"),
    **refused("mirostat", 0, say="typical_p"),
    **refused("n_probs", 0, say="logprobs top_logprobs"),
    **refused("output_schema returns", say="parameters"),
    **refused("personality", say="instructions"),
    **refused("preserved_tokens", [], say="skip_special_tokens"),
    **refused("previous_input_messages previous_response", say="input"),
    **refused("prompt", say="messages instructions input"),
    **refused("reasoning_effort", say="reasoning.effort"),
    **refused("stop_regex", [], "", say="stop"),
    **refused("t_max_predict_ms", 0, -1, say="timeout"),
    **refused("whitespace_pattern", say="whitespace"),
    **refused("with_pieces", False, say="return_token_strs"),
}
_EXCEPTIONS: Table = {
    ContentPart: refused("annotations", []),
    Message: refused("text", say="content"),
    ReasoningParam: refused("mode") | refused("context", "auto") | refused("enabled", True)
    | refused("exclude", False),
    responses.ResponsesRequest: refused("return_tokens", False),
    responses.ResponseStreamOptions: hint("include_usage"),
    responses.InputPart: hint("annotations logprobs parsed"),
    responses.FunctionCallItem: hint("parsed_arguments"),
    responses.FunctionCallOutputItem: hint("name namespace"),
    responses.CustomCallOutputItem: hint("name namespace"),
    tools.FunctionParam: hint("required"),
    structured.JsonSchemaObject: refused("type", "json_schema"),
    tokenize.TokenizeRequest: alias("prompt", "text"),
    rerank.RelevanceRequest: refused("use_activation", True),
    rerank.RerankRequest: alias("top_n", "top_k") | alias("documents", "texts"),
    rerank.ScoreRequest: alias("text_1", "queries") | alias("text_2", "documents items"),
    anthropic.CountTokensRequest: hint(
        "max_tokens temperature top_p top_k stop stop_sequences stream"
    ),
    anthropic.MessagesRequest: alias("stop_sequences", "stop") | hint("user"),
    anthropic.OutputFormat: hint("name description strict"),
}  # fmt: skip


@cache
def table() -> Table:
    """The effects of fields by the types that may have them, of extensions too."""
    found: dict[type[msgspec.Struct], Effects] = {
        msgspec.Struct: _HINTS | _NAMES | _REFUSED,
        **_EXCEPTIONS,
    }
    for extension in extensions():
        found |= extension.fields
    return found
