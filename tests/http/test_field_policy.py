"""The policy for fields: by the names of other servers and clients, never silence."""

from typing import Any

import httpx
import msgspec
import openai
import pytest

from pyengine.chat.template import ChatTemplate
from pyengine.http.fields.effects import Alias, Refused
from pyengine.http.fields.policy import FieldPolicy
from pyengine.http.fields.table import _HINTS, _NAMES, _REFUSED, table
from pyengine.http.limits import Limits
from pyengine.http.openai.schema.chat import ChatRequest
from pyengine.http.openai.schema.completions import CompletionRequest
from pyengine.http.openai.schema.responses import ResponsesRequest
from tests.http.fake_engine import FakeEngine
from tools.docs.api import PAGE, page

MODEL = "org/fake"
CHAT, TEXT, RESPONSE = "/v1/chat/completions", "/v1/completions", "/v1/responses"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    TEXT: {"prompt": "hi"},
    RESPONSE: {"input": "hi"},
}
TYPES: dict[str, Any] = {CHAT: ChatRequest, TEXT: CompletionRequest, RESPONSE: ResponsesRequest}
VLLM = """
add_generation_prompt add_special_tokens allowed_token_ids bad_words cache_salt chat_template
chat_template_kwargs continue_final_message documents echo guided_choice guided_grammar guided_json
guided_regex guided_whitespace_pattern ignore_eos include_reasoning include_stop_str_in_output
kv_transfer_params length_penalty logits_processors media_io_kwargs min_p min_tokens
mm_processor_kwargs priority prompt_embeds prompt_logprobs repetition_penalty request_id
return_token_ids return_tokens_as_token_ids skip_special_tokens spaces_between_special_tokens
stop_token_ids structured_outputs thinking_token_budget top_k truncate_prompt_tokens
truncation_side use_beam_search vllm_xargs
""".split()
SGLANG = """
bootstrap_host bootstrap_port bootstrap_room custom_logit_processor custom_params
data_parallel_rank ebnf extra_key json_schema lora_path max_new_tokens no_stop_trim regex
return_hidden_states rid sampling_seed session_params stop_regex
""".split()
LLAMA_CPP = """
cache_prompt dry_allowed_length dry_base dry_multiplier dry_penalty_last_n dry_sequence_breakers
dynatemp_exponent dynatemp_range grammar id_slot lora min_keep mirostat mirostat_eta mirostat_tau
n_indent n_keep n_predict n_probs post_sampling_probs repeat_last_n repeat_penalty response_fields
return_tokens samplers t_max_predict_ms timings_per_token top_n_sigma typical_p xtc_probability
xtc_threshold
""".split()
# Of conversations only.
IN_CHAT = {
    "add_generation_prompt", "chat_template", "chat_template_kwargs", "continue_final_message",
    "documents", "include_reasoning",
}  # fmt: skip


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_no_field_of_other_servers_is_passed_over(http: httpx.AsyncClient, path: str) -> None:
    policy = FieldPolicy(table())
    for name in (*VLLM, *SGLANG, *LLAMA_CPP):
        if path == TEXT and name in IN_CHAT:
            continue
        answer = await http.post(path, json={**BODIES[path], name: [{"odd": "x"}]})
        if answer.status_code == 200:
            assert f"'{name}'" in answer.json()["warnings"][0]
            assert f"'{name}'" in answer.headers["x-pyengine-warnings"]
            continue
        error = answer.json()["error"]
        assert answer.status_code == 400
        assert not error["message"].startswith("Unknown"), f"{name} is not in the table"
        known = policy.effects(TYPES[path]).get(name)
        meant = known.of if isinstance(known, Alias) else name
        assert error["param"].split("[")[0] == meant


@pytest.mark.parametrize("path", list(BODIES))
async def test_null_asks_for_nothing_and_neutral_values_are_told(
    http: httpx.AsyncClient, engine: FakeEngine, path: str
) -> None:
    found = FieldPolicy(table()).effects(TYPES[path])
    refused = {name: effect for name, effect in found.items() if isinstance(effect, Refused)}
    nulls = dict.fromkeys(found)
    answer = await http.post(path, json={**BODIES[path], **nulls})
    assert answer.status_code == 200, answer.text
    assert "warnings" not in answer.json()
    assert "x-pyengine-warnings" not in answer.headers
    neutral = {name: effect.neutral[0] for name, effect in refused.items() if effect.neutral}
    answer = await http.post(path, json={**BODIES[path], **neutral})
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["warnings"]) == len(neutral)
    for name in refused:
        answer = await http.post(path, json={**BODIES[path], name: {"odd": 1}})
        assert answer.json()["error"]["param"] == name, name
        assert answer.json()["error"]["code"] == "unsupported_parameter"
    # What is told is told of what was asked, and changes nothing of it.
    assert all(each.params == engine.asked[0].params for each in engine.asked)


async def test_hints_are_told_once_in_streams_too(
    client: openai.AsyncOpenAI, engine: FakeEngine
) -> None:
    extra = {"cache_prompt": True, "rid": "7", "use_beam_search": False}
    content: Any = [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]
    messages: Any = [{"role": "user", "content": content, "name": "Ada"}] * 2
    raw = await client.chat.completions.with_raw_response.create(
        model=MODEL, messages=messages, stream=True, extra_body=extra
    )
    chunks: list[Any] = [chunk async for chunk in raw.parse()]
    warnings = chunks[0].warnings
    names = ["'cache_prompt'", "'rid'", "'use_beam_search'", "'messages[].content[].cache_control'"]
    assert sorted(warning.split()[0].rstrip(":") for warning in warnings) == sorted(
        [*names, "'messages[].name'"]
    )
    assert not any("warnings" in (chunk.model_extra or {}) for chunk in chunks[1:])
    assert all(warning in raw.headers["x-pyengine-warnings"] for warning in warnings)
    stream: Any = await client.completions.create(
        model=MODEL, prompt="x", stream=True, extra_body={"rid": "7"}
    )
    assert len([chunk async for chunk in stream if hasattr(chunk, "warnings")]) == 1


async def test_other_names(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    for given, name, value in (
        ({"n_predict": 3}, "max_tokens", 3),
        ({"n_predict": -1}, "max_tokens", None),
        ({"max_new_tokens": 3}, "max_tokens", 3),
        ({"repeat_penalty": 1.5}, "repetition_penalty", 1.5),
        ({"sampling_seed": 7}, "seed", 7),
        ({"no_stop_trim": True}, "include_stop", True),
        ({"top_k": -1}, "top_k", 0),
        ({"stop_sequences": ["x"]}, "stop", ("x",)),
    ):
        answer = await http.post(CHAT, json={**BODIES[CHAT], **given})
        assert answer.status_code == 200, answer.text
        assert getattr(engine.asked[-1].params, name) == value


async def test_a_grammar_by_its_other_name(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    for name in ("grammar", "ebnf"):
        body = {**BODIES[TEXT], name: 'root ::= "a" | "b"'}
        assert (await http.post(TEXT, json=body)).status_code == 200
    first, second = (asked.grammar for asked in engine.asked)
    assert first == second != None  # noqa: E711
    both = {**BODIES[CHAT], "max_tokens": 3, "n_predict": 4}
    assert (await http.post(CHAT, json=both)).json()["error"]["param"] == "n_predict"


async def test_unknown_fields(http: httpx.AsyncClient) -> None:
    for name, message in (
        ("temprature", "Unknown parameter: 'temprature'. Did you mean 'temperature'?"),
        ("repeat_penality", "Unknown parameter: 'repeat_penality'. Did you mean 'repeat_penalty'?"),
        ("qqqqq", "Unknown parameter: 'qqqqq'."),
        ("x" * 1000, "Unknown parameter: '" + "x" * 100 + "'."),
    ):
        error = (await http.post(CHAT, json={**BODIES[CHAT], name: 1})).json()["error"]
        assert error["message"] == message


@pytest.mark.parametrize("limits", [Limits(unknown_fields="warn")])
async def test_unknown_fields_that_are_left_out(http: httpx.AsyncClient) -> None:
    messages = [{"role": "user", "content": "hi", "mood": "good"}]
    body = {"messages": messages, "temprature": 1, "sch\u00f6n\n": 1}
    answer = await http.post(CHAT, json=body)
    assert answer.status_code == 200
    told = " ".join(answer.json()["warnings"])
    assert "'messages[].mood'" in told
    assert "'temprature'" in told
    assert "'sch?n?'" in answer.headers["x-pyengine-warnings"]
    # What is known and would change the answer is refused all the same.
    answer = await http.post(CHAT, json={**body, "mirostat": 2})
    assert answer.json()["error"]["param"] == "mirostat"


async def test_fields_that_the_template_does_not_read_are_warned_of(
    http: httpx.AsyncClient, engine: FakeEngine
) -> None:
    body = {
        **BODIES[CHAT],
        "chat_template_kwargs": {"enable_thinking": False},
        "reasoning_effort": "low",
    }
    told = (await http.post(CHAT, json=body)).json()["warnings"]
    assert [warning.split("'")[1] for warning in told] == ["enable_thinking", "reasoning_effort"]
    reasoning = {"effort": "low", "summary": "auto"}
    response = {"input": "hi", "reasoning": reasoning, "include": ["web_search_call.results"]}
    told = (await http.post(RESPONSE, json=response)).json()["warnings"]
    assert [warning.split("'")[1] for warning in told] == [
        "reasoning.summary", "include", "reasoning_effort",
    ]  # fmt: skip
    engine.template = ChatTemplate("{{ messages[0].content }}{{ messages[0].name }}")
    named = {"messages": [{"role": "user", "content": "hi", "name": "Ada"}]}
    assert "warnings" not in (await http.post(CHAT, json=named)).json()
    assert engine.tokenizer.decode(engine.asked[-1].prompt) == "hiAda"


async def test_echoes_of_an_answer(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    said = {
        "role": "assistant", "content": "x", "id": "m", "reasoning": "hm", "annotations": [],
        "thinking_blocks": [{"type": "thinking", "thinking": "hm"}], "refusal": None,
        "provider_specific_fields": {"a": 1},
    }  # fmt: skip
    user = {"role": "user", "content": "hi"}
    answer = await http.post(CHAT, json={"messages": [user, said, user]})
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["warnings"]) == 4
    items = [
        {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "x", "annotations": []}]},
        {"role": "user", "content": "hi"},
    ]
    answer = await http.post(RESPONSE, json={"input": items})
    assert answer.status_code == 200, answer.text
    assert "input[].encrypted_content" in answer.headers["x-pyengine-warnings"]


async def test_usage_in_every_chunk(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    messages: Any = BODIES[CHAT]["messages"]
    streams: list[Any] = [
        await client.chat.completions.create(
            model=MODEL, messages=messages, stream=True, stream_options=options, max_tokens=4
        ),
        await client.completions.create(
            model=MODEL, prompt="hi", stream=True, stream_options=options, max_tokens=4
        ),
    ]
    for stream in streams:
        counts = [chunk.usage.completion_tokens async for chunk in stream]
        assert counts == sorted(counts)
        assert counts[-1] == 4
        assert len(set(counts)) > 2


async def test_prompts_that_are_cut(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    for most, left in ((2, [4, 5]), (-1, [3, 4, 5]), (9, [3, 4, 5])):
        body = {"prompt": [3, 4, 5], "truncate_prompt_tokens": most}
        assert (await http.post(TEXT, json=body)).status_code == 200
        assert engine.asked[-1].prompt == left
    long = {"prompt": list(range(256)) * 4, "truncate_prompt_tokens": -1, "max_tokens": 12}
    assert (await http.post(TEXT, json=long)).status_code == 200
    assert len(engine.asked[-1].prompt) == engine.max_context - 12


def _encoded(kind: Any) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(kind)}


def test_fields_of_the_table_are_not_those_of_their_type() -> None:
    for kind, fields in table().items():
        assert not _encoded(kind) & fields.keys(), kind


def test_a_name_has_one_effect() -> None:
    assert len(table()[msgspec.Struct]) == len(_HINTS) + len(_NAMES) + len(_REFUSED)


async def test_a_name_has_its_effect_within_objects_too(http: httpx.AsyncClient) -> None:
    message = {"role": "user", "content": "hi", "cache_prompt": True}
    answer = await http.post(CHAT, json={"messages": [message]})
    assert answer.json()["warnings"] == [
        "'messages[].cache_prompt' cannot change this answer and is left out."
    ]
    error = (await http.post(CHAT, json={"messages": [message | {"mirostat": 2}]})).json()["error"]
    assert error["message"] == "'messages[0].mirostat' is not supported; only 0 is."
    error = (await http.post(RESPONSE, json={"input": "hi", "n_probs": 2})).json()["error"]
    assert error["message"] == "'n_probs' is not supported: use 'top_logprobs'."


def test_the_page_of_fields_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: .venv/bin/python -m tools.docs.api"
