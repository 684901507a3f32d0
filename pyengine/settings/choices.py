"""The values of settings that are one of a few names."""

from typing import Literal

from pyengine.settings.modes import Mode

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
KvCacheDtype = Literal["auto", "bfloat16", "float16", "float8_e4m3"]
AttentionName = Literal["auto", "flashinfer", "triton", "torch"]
LoadFormat = Literal["auto", "dummy"]
SpecialTokensInContent = Literal["text", "allow"]
GenerationConfigUse = Literal["auto", "none"]
Quantization = Literal["int8", "int4"]
# A name in pyengine.devices, or ``auto``.
Device = str
# A name in pyengine._core.PROPOSERS.
Proposer = str

ChatFormatName = Literal[
    "none",
    "command",
    "deepseek_r1",
    "deepseek_v3",
    "deepseek_v31",
    "functionary",
    "gemma4",
    "gemma_json",
    "gemma_tool_code",
    "glm45",
    "gpt_oss",
    "granite",
    "granite_thinking",
    "hermes",
    "hunyuan",
    "hunyuan_json",
    "kimi",
    "kimi_thinking",
    "llama3_json",
    "llama4_json",
    "llama4_pythonic",
    "llama_pythonic",
    "magistral",
    "minimax_m2",
    "mistral",
    "mistral_args",
    "mistral_tekken",
    "nemotron",
    "olmo3",
    "olmo3_thinking",
    "phi4_functools",
    "phi4_mini",
    "qwen3",
    "qwen3_coder",
    "qwen3_coder_thinking",
    "seed_oss",
]

CHOICES = {
    "chat_format": ChatFormatName,
    "special_tokens_in_content": SpecialTokensInContent,
    "generation_config": GenerationConfigUse,
    "mode": Mode,
    "dtype": Dtype,
    "load_format": LoadFormat,
    "quantization": Quantization,
    "kv_cache_dtype": KvCacheDtype,
    "attention": AttentionName,
}
"""The settings that are one of a few names, and which."""
