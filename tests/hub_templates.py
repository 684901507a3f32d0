"""Chat templates of families, in words of our own; the marks are those of the families."""

CHATML = """
{%- if tools %}<|im_start|>system
Tools: {{ tools | tojson }} <tool_call>
{"name": ..., "arguments": ...}
</tool_call><|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{{ call.function | tojson }}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{%- if enable_thinking is defined and not enable_thinking %}
NO THINKING
{%- endif %}
{% endif %}"""

INST = """{{ bos_token }}
{%- if tools %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{%- for message in messages %}
{%- if message.tool_calls %}[TOOL_CALLS] [
{%- for call in message.tool_calls %}{{ call.function | tojson }}{% endfor %}]{{ eos_token }}
{%- elif message.role == 'user' %}[INST] {{ message.content }}[/INST]
{%- else %}{{ message.content }}{{ eos_token }}
{%- endif %}
{%- endfor %}"""

INST_NAMED = INST.replace(
    "[TOOL_CALLS] [\n{%- for call in message.tool_calls %}{{ call.function | tojson }}"
    "{% endfor %}]",
    "{%- for call in message.tool_calls %}[TOOL_CALLS]{{ call.function.name }}[ARGS]"
    "{{ call.function.arguments | tojson }}{% endfor %}",
)

GLM = """[gMASK]<sop>
{%- if tools %}<|system|>
Tools: {{ tools | tojson }}; call them so: <tool_call>name
<arg_key>key</arg_key>
<arg_value>value</arg_value>
</tool_call>{% endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}<|assistant|>
<think></think>
{{- '\\n' + message.content if message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>{{ call.function.name }}
{% for key, value in call.function.arguments.items() -%}
<arg_key>{{ key }}</arg_key>
<arg_value>{{ value if value is string else value | tojson }}</arg_value>
{% endfor -%}
</tool_call>
{%- endfor %}
{%- else %}<|{{ 'observation' if message.role == 'tool' else message.role }}|>
{{ message.content }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>
{{- '\\n<think></think>' if enable_thinking is defined and not enable_thinking }}
{%- endif %}"""

MINIMAX = """]~!b[]~b]system
Tools: {{ tools | tojson }}
<minimax:tool_call>
<invoke name="name">
<parameter name="key">value</parameter>
</invoke>
</minimax:tool_call>[e~[
{% for message in messages -%}
]~b]{{ 'ai' if message.role == 'assistant' else message.role }}
{{ message.content }}
{%- if message.tool_calls %}
<minimax:tool_call>
{% for call in message.tool_calls -%}
<invoke name="{{ call.function.name }}">
{% for key, value in call.function.arguments.items() -%}
<parameter name="{{ key }}">{{ value if value is string else value | tojson }}</parameter>
{% endfor -%}
</invoke>
{% endfor -%}
</minimax:tool_call>
{%- endif %}[e~[
{% endfor -%}
{% if add_generation_prompt %}]~b]ai
<think>
{% endif %}"""

SEED = """
{%- if tools %}<seed:bos>system
Tools: {{ tools | tojson }}
<seed:tool_call>
<function=name>
<parameter=key>value</parameter>
</function>
</seed:tool_call><seed:eos>{% endif %}
{%- for message in messages %}<seed:bos>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<seed:tool_call>
<function={{ call.function.name }}>
{% for key, value in call.function.arguments.items() -%}
<parameter={{ key }}>{{ value }}</parameter>
{% endfor -%}
</function>
</seed:tool_call>
{%- endfor %}<seed:eos>
{%- endfor %}
{%- if add_generation_prompt %}<seed:bos>assistant
{% endif %}"""

COMMAND = """{{ bos_token }}
{%- if tools %}<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>Tools: {{ tools | tojson }}
Think between <|START_THINKING|> and <|END_THINKING|>, then act between <|START_ACTION|> and
<|END_ACTION|>, or answer behind <|START_RESPONSE|>.<|END_OF_TURN_TOKEN|>{% endif %}
{%- for message in messages %}<|START_OF_TURN_TOKEN|>
{%- if message.tool_calls %}<|CHATBOT_TOKEN|><|START_ACTION|>[
{%- for call in message.tool_calls %}
    {"tool_call_id": "{{ loop.index0 }}", "tool_name": "{{ call.function.name }}", "parameters":
    {{- call.function.arguments | tojson }}}{{ "," if not loop.last }}
{%- endfor %}
]<|END_ACTION|>
{%- elif message.role == 'assistant' %}<|CHATBOT_TOKEN|><|START_RESPONSE|>{{ message.content }}
{{- '<|END_RESPONSE|>' }}
{%- else %}{{ '<|USER_TOKEN|>' if message.role == 'user' else '<|SYSTEM_TOKEN|>' }}
{{- message.content }}
{%- endif %}<|END_OF_TURN_TOKEN|>
{%- endfor %}
{%- if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}"""

GRANITE = """
{%- if tools %}<|start_of_role|>system<|end_of_role|>
{%- if thinking %}Think between <think></think>, answer between <response></response>. {% endif -%}
Write <|tool_call|> and a list.<|end_of_text|>
<|start_of_role|>available_tools<|end_of_role|>{{ tools | tojson }}<|end_of_text|>
{% endif %}
{%- for message in messages %}<|start_of_role|>{{ message.role }}<|end_of_role|>
{%- if message.tool_calls %}<|tool_call|>[
{%- for call in message.tool_calls %}{{ call.function | tojson }}{% endfor %}]
{%- else %}{{ message.content }}
{%- endif %}<|end_of_text|>
{% endfor %}
{%- if add_generation_prompt %}<|start_of_role|>assistant<|end_of_role|>{% endif %}"""

GEMMA4 = """{{ bos_token }}
{%- macro value(given) -%}
{%- if given is string %}<|"|>{{ given }}<|"|>
{%- elif given is mapping %}{
{%- for key, each in given | dictsort %}{{ key }}:{{ value(each) }}
{{- ',' if not loop.last }}
{%- endfor %}}
{%- else %}{{ given | tojson }}
{%- endif %}
{%- endmacro %}
{%- if tools %}<|turn>system
{% for tool in tools %}<|tool>declaration:{{ value(tool.function) }}<tool|>{% endfor %}<turn|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}<|tool_response>{{ value(message.content) }}<tool_response|>
{%- else %}<|turn>{{ 'model' if message.role == 'assistant' else message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}<|tool_call>call:{{ call.function.name }}
{{- value(call.function.arguments) }}<tool_call|>
{%- endfor %}
{{- '<turn|>\\n' if not message.tool_calls }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt and messages[-1].role != 'tool' %}<|turn>model
{{ '<|channel>thought\\n<channel|>' if not enable_thinking }}
{%- endif %}"""

OLMO = """
{%- if tools %}<|im_start|>system
<functions>{{ tools | tojson }}</functions><|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- if message.tool_calls %}<function_calls>
{%- for call in message.tool_calls %}
{{ call.function.name }}(
{%- for key, value in call.function.arguments.items() -%}
{{ key }}={{ value | tojson }}{{ ", " if not loop.last }}
{%- endfor %})
{%- endfor %}
</function_calls>{% endif %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

EXAONE = """
{%- if tools %}[|system|]
Tools: {{ tools | tojson }} <tool_call>{"name": ..., "arguments": ...}</tool_call>[|endofturn|]
{% endif %}
{%- for message in messages %}[|{{ message.role }}|]
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>{{ call.function | tojson }}</tool_call>
{%- endfor %}[|endofturn|]
{% endfor %}
{%- if add_generation_prompt %}[|assistant|]
{{ '<think>\\n' if enable_thinking else '<think>\\n\\n</think>\\n\\n' }}
{%- endif %}"""
