"""The fields of other servers and of clients, which any generating request may have."""

from pyengine.http.fields.effects import alias, hint, limit, refused, text_or_nothing
from pyengine.http.fields.policy import Alias

OPENAI = refused("moderation") | hint(
    "safety_identifier service_tier prompt_cache_key prompt_cache_options prompt_cache_retention"
)
LITELLM = (
    refused("guardrails mock_response")
    | refused("extra_body", {})
    | hint(
        "litellm_metadata litellm_call_id litellm_session_id litellm_trace_id litellm_logging_obj"
        " no-log tags deployment_id drop_params additional_drop_params allowed_openai_params"
        " num_retries max_retries cache caching ttl custom_llm_provider api_version extra_headers"
        " provider_specific_fields fallbacks context_window_fallback_dict"
    )
)
VLLM = {
    **refused("prompt_embeds repetition_detection"),
    **refused("use_beam_search early_stopping watermarking return_prompt_text", False),
    **refused("return_routed_experts return_weight_versions return_token_offsets", False),
    **refused("return_mm_kwargs padding", False),
    **refused("stream_interval", 1),
    **refused("vllm_xargs kv_transfer_params ec_transfer_params", {}),
    **refused("length_penalty", 1.0),
    **refused("spaces_between_special_tokens", True),
    **refused("logprob_token_ids", [], say="top_logprobs"),
    **refused("thinking_token_budget", -1),
    **refused("min_reasoning_tokens", 0),
    **refused("truncation_side", "left"),
    **refused("guided_whitespace_pattern", say="structured_outputs.whitespace"),
    **hint("mm_payload routed_experts_prompt_start"),
    **hint("mm_processor_kwargs media_io_kwargs guided_decoding_backend request_id session_id"),
}
SGLANG = {
    **alias(max_new_tokens="max_tokens", min_new_tokens="min_tokens", sampling_seed="seed"),
    **alias(no_stop_trim="include_stop_str_in_output"),
    **refused("custom_logit_processor"),
    **refused("session_params custom_params", {}),
    **refused("return_hidden_states return_meta_info return_prompt_token_ids", False),
    **refused("use_audio_in_video", False),
    **refused("lora_path", "", []),
    **refused("stop_regex", [], "", say="stop"),
    **hint("return_cached_tokens_details routed_experts_start_len rid extra_key custom_labels"),
    **hint("images_config ngram_corpus_id bootstrap_host bootstrap_port bootstrap_room"),
    **hint("routed_dp_rank disagg_prefill_dp_rank data_parallel_rank"),
}
LLAMA_CPP = {
    **alias(repeat_penalty="repetition_penalty", return_tokens="return_token_ids"),
    **alias(typ_p="typical_p", n_cmpl="n"),
    "n_predict": Alias("max_tokens", limit),
    "grammar": Alias("ebnf", text_or_nothing),
    **refused("samplers"),
    **refused("post_sampling_probs return_progress timings_per_token grammar_lazy", False),
    **refused("response_fields lora", []),
    **refused("penalize_nl", True),
    **refused("n_indent", 0),
    **refused("min_keep", 0, 1),
    **refused("adaptive_target", -1.0),
    **refused("tfs_z", 1.0),
    **refused("mirostat", 0, say="typical_p"),
    **refused("n_probs", 0, say="logprobs"),
    **refused("t_max_predict_ms", 0, -1, say="timeout"),
    **refused("grammar_triggers", [], say="structural_tag"),
    **refused("preserved_tokens", [], say="skip_special_tokens"),
    **hint("backend_sampling sse_ping_interval"),
    **hint("mirostat_tau mirostat_eta adaptive_decay n_keep n_discard id_slot cache_prompt"),
    **hint("n_cache_reuse speculative.n_max speculative.n_min speculative.p_min"),
}
MISTRAL = alias(random_seed="seed")
SERVERS = {**OPENAI, **LITELLM, **VLLM, **SGLANG, **LLAMA_CPP, **MISTRAL}
