"""Text completions with a suffix: the gap is marked as the model's family does."""

import json
from typing import Any

import httpx
import openai
import pytest
import tokenizers

from pyengine.tokenizer import Tokenizer
from tests.http.fake_engine import FakeEngine, small_tokenizer

FAMILIES = {
    "qwen": ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>"),
    "starcoder": ("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<file_sep>"),
    "codellama": ("▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"),
    "deepseek": ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", "<|endoftext|>"),
}


def with_marks(marks: tuple[str, ...]) -> Tokenizer:
    made = tokenizers.Tokenizer.from_str(json.dumps(json.loads(small_tokenizer().tokenizer_json)))
    made.add_special_tokens(list(marks))
    return Tokenizer(made, made.to_str(), [1])


@pytest.fixture(params=list(FAMILIES))
def marks(request: pytest.FixtureRequest) -> tuple[str, ...]:
    found: tuple[str, ...] = FAMILIES[request.param]
    return found


async def test_the_prompt_of_a_gap(
    client: openai.AsyncOpenAI, engine: FakeEngine, marks: tuple[str, ...]
) -> None:
    engine.tokenizer, engine.answer = with_marks(marks), "return a"
    for prompt in ("def f(a):", small_tokenizer().encode("def f(a):")):
        given: Any = prompt
        answer = await client.completions.create(
            model="org/fake", prompt=given, suffix="\n\nf(1)", max_tokens=5
        )
        assert answer.choices[0].text == "retur"
        asked = engine.asked[-1]
        before, behind, middle, end = marks
        shown = engine.tokenizer.decode(asked.prompt)
        assert shown == f"{before}def f(a):{behind}\n\nf(1){middle}"
        assert engine.tokenizer.token_id(end) in asked.params.stop_token_ids


@pytest.mark.parametrize("fields", [{}, {"echo": True}])
async def test_what_cannot_be_filled_is_refused(
    http: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, Any]
) -> None:
    body = {"prompt": "a", "suffix": "b", **fields}
    error = (await http.post("/v1/completions", json=body)).json()["error"]
    assert error["param"] == "suffix"
    assert (error["code"] == "unsupported_parameter") == (not fields)
    assert not engine.asked
    empty = {"prompt": "a", "suffix": ""}
    assert (await http.post("/v1/completions", json=empty)).status_code == 200
