"""Which format a model writes, by the markers in its chat template."""

from collections.abc import Mapping
from types import MappingProxyType

from pyengine.chat.formats.families import (
    gemma4,
    harmony,
    json_calls,
    named_calls,
    python_calls,
    tagged_calls,
)
from pyengine.chat.formats.format import ChatFormat

FORMATS: Mapping[str, ChatFormat] = MappingProxyType(
    {
        each.name: each
        for family in (gemma4, harmony, json_calls, named_calls, python_calls, tagged_calls)
        for each in vars(family).values()
        if isinstance(each, ChatFormat)
    }
)
"""Every format by its name."""


_MARKS: tuple[tuple[str, ChatFormat, ChatFormat], ...] = (
    ("<|tool_calls_section_begin|>", named_calls.KIMI, named_calls.KIMI_THINKING),
    ("<|tool_call>", gemma4.GEMMA4, gemma4.GEMMA4),
    ("<minimax:tool_call>", tagged_calls.MINIMAX_M2, tagged_calls.MINIMAX_M2),
    ("<seed:tool_call>", tagged_calls.SEED_OSS, tagged_calls.SEED_OSS),
    ("<|START_ACTION|>", json_calls.COMMAND, json_calls.COMMAND),
    ("<|channel|>", harmony.GPT_OSS, harmony.GPT_OSS),
    ("<TOOLCALL>", json_calls.NEMOTRON, json_calls.NEMOTRON),
    ("<arg_key>", tagged_calls.GLM45, tagged_calls.GLM45),
    ("<function_calls>", python_calls.OLMO3, python_calls.OLMO3_THINKING),
    ("<{start_tag}={function_name}>", named_calls.FUNCTIONARY, named_calls.FUNCTIONARY),
    ("<function=", tagged_calls.QWEN3_CODER, tagged_calls.QWEN3_CODER_THINKING),
    ("<tool_calls><tool_call>", named_calls.HUNYUAN, named_calls.HUNYUAN),
    ("<tool_calls>[", named_calls.HUNYUAN_JSON, named_calls.HUNYUAN_JSON),
    ("<tool_call>", json_calls.HERMES, json_calls.QWEN3),
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
            return named_calls.DEEPSEEK_V31
        return named_calls.DEEPSEEK_R1 if thinks else named_calls.DEEPSEEK_V3
    for mark, plain, thinking in _MARKS:
        if mark in source:
            return thinking if thinks else plain
    if "[TOOL_CALLS]" in source:
        return _mistral(source, "[THINK]" in source)
    if "functools[" in source:
        return json_calls.PHI4_FUNCTOOLS
    if "<|tool_call|>" in source and "<|start_of_role|>" in source:
        return json_calls.GRANITE_THINKING if thinks else json_calls.GRANITE
    if "<|tool|>" in source or "<|tool_call|>" in source:
        return json_calls.PHI4_MINI
    return _by_the_prompt(source)


def _mistral(source: str, thinks: bool) -> ChatFormat:
    if thinks:
        return named_calls.MAGISTRAL
    if "[ARGS]" in source:
        return named_calls.MISTRAL_ARGS
    return named_calls.MISTRAL if "[TOOL_CALLS] [" in source else named_calls.MISTRAL_TEKKEN


def _by_the_prompt(source: str) -> ChatFormat | None:
    """Families whose template describes calls in words, without markers."""
    if "<|header_start|>" in source:
        asks_for_json = '"parameters"' in source and "[func_name1(" not in source
        return python_calls.LLAMA4_JSON if asks_for_json else python_calls.LLAMA4_PYTHONIC
    if "[func_name1(" in source:
        return python_calls.LLAMA_PYTHONIC
    if "<|start_header_id|>" in source and '"parameters"' in source:
        return python_calls.LLAMA3_JSON
    if "<start_of_turn>" in source:
        if "```tool_code" in source:
            return python_calls.GEMMA_TOOL_CODE
        if '"parameters"' in source:
            return python_calls.GEMMA_JSON
    return None
