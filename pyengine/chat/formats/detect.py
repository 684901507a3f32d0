"""Which format a model writes, by the markers in its chat template."""

from collections.abc import Mapping
from types import MappingProxyType

from pyengine.chat.formats.families import (
    deepseek,
    gemma,
    harmony,
    hermes,
    llama,
    mistral,
    phi4,
    qwen3_coder,
)
from pyengine.chat.formats.format import ChatFormat

FORMATS: Mapping[str, ChatFormat] = MappingProxyType(
    {
        each.name: each
        for each in (
            deepseek.DEEPSEEK_R1,
            deepseek.DEEPSEEK_V3,
            deepseek.DEEPSEEK_V31,
            gemma.GEMMA_JSON,
            gemma.GEMMA_TOOL_CODE,
            harmony.GPT_OSS,
            hermes.HERMES,
            hermes.QWEN3,
            llama.LLAMA3_JSON,
            llama.LLAMA4_PYTHONIC,
            llama.LLAMA_PYTHONIC,
            mistral.MAGISTRAL,
            mistral.MISTRAL,
            mistral.MISTRAL_ARGS,
            mistral.MISTRAL_TEKKEN,
            phi4.PHI4_FUNCTOOLS,
            phi4.PHI4_MINI,
            qwen3_coder.QWEN3_CODER,
            qwen3_coder.QWEN3_CODER_THINKING,
        )
    }
)
"""Every format by its name."""


def detect(source: str) -> ChatFormat | None:
    """The format of a model by its chat template, that for tools where it has one.

    None where the template holds the markers of no known family.
    """
    thinks = "</think>" in source
    if "<|channel|>" in source:
        return harmony.GPT_OSS
    if "<｜tool▁calls▁begin｜>" in source:
        if "```json" not in source:
            return deepseek.DEEPSEEK_V31
        return deepseek.DEEPSEEK_R1 if thinks else deepseek.DEEPSEEK_V3
    if "<function=" in source:
        return qwen3_coder.QWEN3_CODER_THINKING if thinks else qwen3_coder.QWEN3_CODER
    if "<tool_call>" in source:
        return hermes.QWEN3 if thinks else hermes.HERMES
    if "[TOOL_CALLS]" in source:
        return _mistral(source, "[THINK]" in source)
    if "functools[" in source:
        return phi4.PHI4_FUNCTOOLS
    if "<|tool|>" in source or "<|tool_call|>" in source:
        return phi4.PHI4_MINI
    return _by_the_prompt(source)


def _mistral(source: str, thinks: bool) -> ChatFormat:
    if thinks:
        return mistral.MAGISTRAL
    if "[ARGS]" in source:
        return mistral.MISTRAL_ARGS
    return mistral.MISTRAL if "[TOOL_CALLS] [" in source else mistral.MISTRAL_TEKKEN


def _by_the_prompt(source: str) -> ChatFormat | None:
    """Families whose template describes calls in words, without markers."""
    if "<|header_start|>" in source:
        return llama.LLAMA4_PYTHONIC
    if "[func_name1(" in source:
        return llama.LLAMA_PYTHONIC
    if "<|start_header_id|>" in source and '"parameters"' in source:
        return llama.LLAMA3_JSON
    if "<start_of_turn>" in source:
        if "```tool_code" in source:
            return gemma.GEMMA_TOOL_CODE
        if '"parameters"' in source:
            return gemma.GEMMA_JSON
    return None
