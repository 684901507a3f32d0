"""The fields that requests may have beside those that their types honour, by type.

``docs/API.md`` is made from this table and from the types.
"""

from collections.abc import Mapping
from functools import cache

from pyengine.chat.messages import ContentPart, FunctionCall, Message, MessageToolCall
from pyengine.http.anthropic import schema as anthropic
from pyengine.http.extensions import extensions
from pyengine.http.fields.effects import alias, compact, hint, limit, refused
from pyengine.http.fields.policy import Alias, Effect, Table
from pyengine.http.fields.servers import LITELLM, OPENAI, SERVERS
from pyengine.http.openai.schema import (
    chat,
    common,
    completions,
    decisions,
    embeddings,
    rerank,
    responses,
    structured,
    tokenize,
    tools,
)

ANTHROPIC = {
    **alias(stop="stop_sequences"),
    **refused("container"),
    **refused("mcp_servers", []),
    **hint("diagnostics fallbacks thread workspace_id user_profile_id"),
    **hint("cache_control betas anthropic_version anthropic_beta service_tier inference_geo speed"),
}
BLOCK = hint("cache_control citations")
TOOL = {
    **refused("allowed_callers", ["direct"], []),
    **refused("async", False),
    **hint("cache_control defer_loading"),
}
CALLER = refused("caller", {"type": "direct"})
ITEM = hint("provider_specific_fields cache_control created_by")
CALL = CALLER | refused("async async_", False) | hint("id status") | ITEM

_TABLE: Table = {
    common.GenerationRequest: SERVERS,
    chat.ChatRequest: {
        **alias(stop_sequences="stop"),
        **refused("audio web_search_options chat_format container"),
        **alias(thinking_budget="thinking_token_budget", reasoning_budget="thinking_token_budget"),
        **alias(thinking_budget_tokens="thinking_token_budget"),
        **alias(reasoning_budget_tokens="thinking_token_budget"),
        **refused("system prompt input", say="messages"),
        **refused("best_of", 1, say="n"),
        **refused("echo add_special_tokens thinking_forced_open reasoning_in_content", False),
        **refused("separate_reasoning stream_reasoning parse_tool_calls", True),
        **refused("documents", [], say="messages"),
        **refused("mcp_servers", []),
        **refused("modalities", ["text"]),
        **refused("reasoning_format", "auto", "deepseek"),
        **refused("generation_prompt", ""),
        **hint("max_dynamic_patch min_dynamic_patch betas anthropic_version cache_control"),
    },
    completions.CompletionRequest: {
        **alias(max_completion_tokens="max_tokens", max_tokens_to_sample="max_tokens"),
        **alias(stop_sequences="stop"),
        **refused("reasoning_effort"),
        **refused("messages", say="prompt"),
        **hint("metadata"),
    },
    responses.ResponsesRequest: {
        **SERVERS,
        **alias(max_tokens="max_output_tokens", max_new_tokens="max_output_tokens"),
        "n_predict": Alias("max_output_tokens", limit),
        **refused("context_management prompt_logprobs"),
        **hint("client_metadata access_programs background_options"),
        **refused("enable_response_messages return_token_ids return_tokens", False),
        **refused("return_tokens_as_token_ids", False),
        **refused("conversation", say="previous_response_id"),
        **refused("prompt", say="instructions"),
        **refused("previous_input_messages previous_response messages", say="input"),
        **refused("include_reasoning", True),
        **refused("reasoning_effort", say="reasoning.effort"),
    },
    responses.InputTokensRequest: {
        **refused("conversation", say="previous_response_id"),
        **refused("personality", say="instructions"),
    },
    responses.ResponseStreamOptions: {
        **hint("include_usage"),
    },
    common.ReasoningParam: {
        **refused("mode"),
        **refused("context", "auto"),
        **refused("enabled", True),
        **refused("exclude", False, say="include_reasoning"),
        **hint("summary generate_summary"),
    },
    responses.InputPart: {
        **refused("image_url file_id file_data file_url refusal"),
        **hint("filename detail prompt_cache_breakpoint annotations logprobs parsed"),
        **ITEM,
    },
    responses.MessageItem: hint("id status phase") | ITEM,
    responses.FunctionCallItem: CALL | hint("parsed_arguments"),
    responses.FunctionCallOutputItem: CALLER | hint("id status name namespace") | ITEM,
    responses.CustomCallItem: CALL,
    responses.CustomCallOutputItem: CALLER | hint("id status name namespace") | ITEM,
    responses.LocalShellCallItem: hint("id status") | ITEM,
    responses.LocalShellCallOutputItem: hint("status") | ITEM,
    responses.ToolSearchCallItem: hint("id status") | ITEM,
    responses.ToolSearchOutputItem: hint("id status") | ITEM,
    responses.AdditionalToolsItem: hint("id status") | ITEM,
    responses.ReasoningItem: hint("id status summary") | ITEM,
    responses.FunctionToolParam: TOOL,
    responses.CustomToolParam: TOOL,
    common.StreamOptions: alias(chunk_include_usage="continuous_usage_stats"),
    Message: {
        **alias(reasoning="reasoning_content"),
        **refused("text", say="content"),
        **refused("prefix", False),
        **hint("cache_control id provider_specific_fields thinking_blocks reasoning_details"),
        **hint("tool_responses citations"),
    },
    ContentPart: {
        **refused("image_url input_audio video_url audio_url file refusal"),
        **refused("annotations", []),
        **hint("cache_control prompt_cache_breakpoint provider_specific_fields"),
    },
    MessageToolCall: hint("provider_specific_fields cache_control extra_content"),
    FunctionCall: hint("provider_specific_fields"),
    tools.ToolParam: TOOL,
    tools.FunctionParam: {
        **refused("output_schema returns", say="parameters"),
        **hint("cache_control defer_loading required"),
    },
    structured.StructuredOutputs: {
        "disable_any_whitespace": Alias("whitespace", compact),
        **refused("disable_additional_properties", False),
        **refused("whitespace_pattern", say="whitespace"),
        **hint("disable_fallback"),
    },
    structured.JsonSchemaObject: refused("type", "json_schema"),
    tokenize.TokenizeRequest: {
        **alias(add_special="add_special_tokens", text="prompt"),
        **refused("parse_special", True),
        **refused("with_pieces", False, say="return_token_strs"),
    },
    tokenize.ConversationFields: hint("mm_processor_kwargs media_io_kwargs"),
    embeddings.EmbeddingRequest: {
        **OPENAI,
        **LITELLM,
        **alias(use_activation="normalize"),
        **refused("input_type task prompt", say="input"),
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
        **refused("max_tokens_per_doc max_chunks_per_doc"),
        **refused("truncate_prompt_tokens", -1),
        **refused("use_activation", True),
        **hint("request_id mm_processor_kwargs"),
    },
    rerank.RerankRequest: {
        **alias(top_k="top_n", texts="documents"),
        **refused("rank_fields"),
        **refused("return_embeddings", False),
    },
    rerank.ScoreRequest: alias(queries="text_1", documents="text_2", items="text_2"),
    decisions.DecisionRequest: OPENAI | LITELLM | hint("request_id"),
    anthropic.CountTokensRequest: {
        **ANTHROPIC,
        **hint("max_tokens temperature top_p top_k stop stop_sequences stream metadata"),
    },
    anthropic.MessagesRequest: ANTHROPIC | hint("user"),
    anthropic.Text: BLOCK,
    anthropic.Document: BLOCK,
    anthropic.ToolReference: BLOCK,
    anthropic.ToolUse: hint("toolset_name") | CALLER | BLOCK,
    anthropic.OutputConfig: hint("task_budget"),
    anthropic.OutputFormat: hint("name description strict"),
    anthropic.ToolResult: hint("is_error") | BLOCK,
    anthropic.FunctionTool: {
        **refused("allowed_callers", ["direct"], []),
        **refused("input_examples", [], say="description"),
        **hint("cache_control defer_loading eager_input_streaming max_characters"),
    },
    anthropic.ThinkingParam: refused("between_tools", "auto"),
}


@cache
def table() -> Table:
    """The effects of fields by the types that may have them, of extensions too."""
    found: dict[type, Mapping[str, Effect]] = dict(_TABLE)
    for extension in extensions():
        found.update(extension.fields)
    return found
