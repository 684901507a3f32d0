r"""The chat format: its special tokens and its jinja template.

A turn is ``<|im_start|>role\ntext<|im_end|>\n``.  Tools are listed in the
system turn, one JSON function signature a line; the assistant calls one by
writing a JSON object between ``<tool_call>`` tags; results come back in a user
turn between ``<tool_response>`` tags.  :mod:`tools.demo_model.dialogue` renders
the same format in Python for training; a test holds the two together.
"""

__all__ = [
    "CHAT_TEMPLATE",
    "END_OF_TEXT",
    "SPECIAL_TOKENS",
    "TOOLS_INTRO",
    "TOOLS_OUTRO",
    "TURN_END",
    "TURN_START",
]

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"

SPECIAL_TOKENS: tuple[str, ...] = (
    END_OF_TEXT,
    TURN_START,
    TURN_END,
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
"""Added tokens in the order of their ids, which start at 0."""

TOOLS_INTRO = "You can call these tools:\n<tools>"
TOOLS_OUTRO = (
    "</tools>\nIf a tool fits, answer with its call:\n<tool_call>\n"
    '{"name": "tool", "arguments": {}}\n</tool_call>'
)

# A part of a message may be text or, in a list of parts, anything else; the
# model reads text only, so other parts are skipped rather than refused.
CHAT_TEMPLATE = """\
{%- macro text_of(content) -%}
{%- if content is string -%}
{{- content -}}
{%- elif content -%}
{%- for part in content -%}
{%- if part is string -%}
{{- part -}}
{%- elif part.text is defined -%}
{{- part.text -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(system='', first=0) -%}
{%- if messages and messages[0].role in ('system', 'developer') -%}
{%- set ns.system = text_of(messages[0].content) -%}
{%- set ns.first = 1 -%}
{%- endif -%}
{%- if ns.system or tools -%}
{{- '<|im_start|>system\\n' + ns.system -}}
{%- if tools -%}
{%- if ns.system -%}
{{- '\\n\\n' -}}
{%- endif -%}
{{- 'INTRO' -}}
{%- for tool in tools -%}
{{- '\\n' + ((tool.function if tool.function is defined else tool) | tojson) -}}
{%- endfor -%}
{{- '\\nOUTRO' -}}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages[ns.first:] -%}
{%- if message.role == 'tool' -%}
{{- '\\n' if loop.previtem is defined and loop.previtem.role == 'tool' -}}
{{- '<|im_start|>user\\n' if not (loop.previtem is defined and loop.previtem.role == 'tool') -}}
{{- '<tool_response>\\n' + text_of(message.content) + '\\n</tool_response>' -}}
{{- '<|im_end|>\\n' if loop.last or loop.nextitem.role != 'tool' -}}
{%- else -%}
{%- set role = 'system' if message.role == 'developer' else message.role -%}
{%- set text = text_of(message.content) -%}
{{- '<|im_start|>' + role + '\\n' + text -}}
{%- for call in message.tool_calls or [] -%}
{%- set call = call.function if call.function is defined else call -%}
{{- '\\n' if text or not loop.first -}}
{{- '<tool_call>\\n{"name": "' + call.name + '", "arguments": ' -}}
{{- call.arguments if call.arguments is string else call.arguments | tojson -}}
{{- '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
""".replace("INTRO", TOOLS_INTRO.replace("\n", "\\n")).replace(
    "OUTRO", TOOLS_OUTRO.replace("\n", "\\n")
)
"""Jinja source; renders alike with and without trim_blocks and lstrip_blocks."""
