"""Which format a model writes, by the markers in its chat template."""

from collections.abc import Mapping
from types import MappingProxyType

from pyengine.chat.formats.families import (
    cohere,
    deepseek,
    functionary,
    gemma,
    gemma4,
    glm,
    granite,
    harmony,
    hermes,
    hunyuan,
    kimi,
    llama,
    minimax,
    mistral,
    nemotron,
    olmo,
    phi4,
    qwen3_coder,
    seed_oss,
)
from pyengine.chat.formats.format import ChatFormat

FORMATS: Mapping[str, ChatFormat] = MappingProxyType(
    {
        each.name: each
        for each in (
            cohere.COMMAND,
            deepseek.DEEPSEEK_R1,
            deepseek.DEEPSEEK_V3,
            deepseek.DEEPSEEK_V31,
            functionary.FUNCTIONARY,
            gemma4.GEMMA4,
            gemma.GEMMA_JSON,
            gemma.GEMMA_TOOL_CODE,
            glm.GLM45,
            granite.GRANITE,
            granite.GRANITE_THINKING,
            harmony.GPT_OSS,
            hermes.HERMES,
            hermes.QWEN3,
            hunyuan.HUNYUAN,
            hunyuan.HUNYUAN_JSON,
            kimi.KIMI,
            kimi.KIMI_THINKING,
            llama.LLAMA3_JSON,
            llama.LLAMA4_JSON,
            llama.LLAMA4_PYTHONIC,
            llama.LLAMA_PYTHONIC,
            minimax.MINIMAX_M2,
            mistral.MAGISTRAL,
            mistral.MISTRAL,
            mistral.MISTRAL_ARGS,
            mistral.MISTRAL_TEKKEN,
            nemotron.NEMOTRON,
            olmo.OLMO3,
            olmo.OLMO3_THINKING,
            phi4.PHI4_FUNCTOOLS,
            phi4.PHI4_MINI,
            qwen3_coder.QWEN3_CODER,
            qwen3_coder.QWEN3_CODER_THINKING,
            seed_oss.SEED_OSS,
        )
    }
)
"""Every format by its name."""


_MARKS: tuple[tuple[str, ChatFormat, ChatFormat], ...] = (
    ("<|tool_calls_section_begin|>", kimi.KIMI, kimi.KIMI_THINKING),
    ("<|tool_call>", gemma4.GEMMA4, gemma4.GEMMA4),
    ("<minimax:tool_call>", minimax.MINIMAX_M2, minimax.MINIMAX_M2),
    ("<seed:tool_call>", seed_oss.SEED_OSS, seed_oss.SEED_OSS),
    ("<|START_ACTION|>", cohere.COMMAND, cohere.COMMAND),
    ("<|channel|>", harmony.GPT_OSS, harmony.GPT_OSS),
    ("<TOOLCALL>", nemotron.NEMOTRON, nemotron.NEMOTRON),
    ("<arg_key>", glm.GLM45, glm.GLM45),
    ("<function_calls>", olmo.OLMO3, olmo.OLMO3_THINKING),
    ("<{start_tag}={function_name}>", functionary.FUNCTIONARY, functionary.FUNCTIONARY),
    ("<function=", qwen3_coder.QWEN3_CODER, qwen3_coder.QWEN3_CODER_THINKING),
    ("<tool_calls><tool_call>", hunyuan.HUNYUAN, hunyuan.HUNYUAN),
    ("<tool_calls>[", hunyuan.HUNYUAN_JSON, hunyuan.HUNYUAN_JSON),
    ("<tool_call>", hermes.HERMES, hermes.QWEN3),
)
"""What only the templates of a format have, before what others have too; the format, and that of
models that think."""


def format_of(template: str | None, name: str | None = None) -> ChatFormat | None:
    """A model's chat format: by its name (``none`` for none), else as its template shows.

    Args:
        template: The source of its chat template, that for tools where it has one.
        name: The format's name; None detects it.
    """
    if name is not None:
        return FORMATS.get(name)
    # Only markers that the template writes: the model was not taught others.
    return None if template is None else detect(template)


def detect(source: str) -> ChatFormat | None:
    """The format of a model by its chat template, that for tools where it has one.

    None where the template holds the markers of no known family.
    """
    thinks = "<think>" in source or "</think>" in source
    if "<｜tool▁calls▁begin｜>" in source:
        if "```json" not in source:
            return deepseek.DEEPSEEK_V31
        return deepseek.DEEPSEEK_R1 if thinks else deepseek.DEEPSEEK_V3
    for mark, plain, thinking in _MARKS:
        if mark in source:
            return thinking if thinks else plain
    if "[TOOL_CALLS]" in source:
        return _mistral(source, "[THINK]" in source)
    if "functools[" in source:
        return phi4.PHI4_FUNCTOOLS
    if "<|tool_call|>" in source and "<|start_of_role|>" in source:
        return granite.GRANITE_THINKING if thinks else granite.GRANITE
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
        asks_for_json = '"parameters"' in source and "[func_name1(" not in source
        return llama.LLAMA4_JSON if asks_for_json else llama.LLAMA4_PYTHONIC
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
