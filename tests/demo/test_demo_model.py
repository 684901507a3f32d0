"""The shipped demo model: its files, its chat format, and a few answers."""

import json
from pathlib import Path
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors")

from pyengine.demo import DRAFT_PATH, MODEL_PATH  # noqa: E402
from tools.demo_model.data import documents, exam  # noqa: E402
from tools.demo_model.dialogue import Dialogue, Turn, held_out, segments  # noqa: E402
from tools.demo_model.evaluate import answers, correct  # noqa: E402
from tools.demo_model.template import CHAT_TEMPLATE, SPECIAL_TOKENS  # noqa: E402

FOLDERS = [pytest.param(MODEL_PATH, id="model"), pytest.param(DRAFT_PATH, id="draft")]
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "Get the weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
CALL_TEXT = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(MODEL_PATH)


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def sandboxed(messages: list[dict[str, Any]], **arguments: Any) -> str:
    """Render as transformers does, in an environment of the test's own."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(CHAT_TEMPLATE).render(messages=messages, **arguments)


def test_folders_are_small_and_complete() -> None:
    assert folder_bytes(MODEL_PATH) <= 6_000_000
    assert folder_bytes(DRAFT_PATH) <= 1_500_000
    names = {
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    for folder in (MODEL_PATH, DRAFT_PATH):
        assert {path.name for path in folder.iterdir()} == names
    same = (path / "tokenizer.json" for path in (MODEL_PATH, DRAFT_PATH))
    assert next(same).read_bytes() == next(same).read_bytes()


@pytest.mark.parametrize("folder", FOLDERS)
def test_config_and_weights_agree(folder: Path) -> None:
    config = transformers.AutoConfig.from_pretrained(folder)
    assert config.model_type == "llama"
    assert config.head_dim % 16 == 0
    assert config.num_attention_heads % config.num_key_value_heads == 0
    assert config.num_key_value_heads < config.num_attention_heads
    with safetensors.safe_open(folder / "model.safetensors", framework="pt") as weights:
        tensors = {name: weights.get_tensor(name) for name in weights.keys()}
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    embedding = tensors["model.embed_tokens.weight"]
    assert tuple(embedding.shape) == (config.vocab_size, config.hidden_size)
    assert "lm_head.weight" not in tensors


def test_special_tokens(tokenizer: Any) -> None:
    assert tokenizer.bos_token is None
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.pad_token == "<|endoftext|>"
    for number, token in enumerate(SPECIAL_TOKENS):
        assert tokenizer.encode(token, add_special_tokens=False) == [number]
    ends = json.loads((MODEL_PATH / "generation_config.json").read_text())["eos_token_id"]
    assert ends == [tokenizer.eos_token_id, tokenizer.pad_token_id]


def test_tokenizer_keeps_every_text(tokenizer: Any) -> None:
    every_byte = "".join(map(chr, range(256)))
    for text in (
        every_byte,
        "naïve café 東京 🦀👩‍👩‍👧 \n\t x  y ",
        "1234567890",
        "  lead, trail  ",
    ):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    assert len(tokenizer.encode("2024", add_special_tokens=False)) == 4


def call(arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "get_weather", "arguments": arguments}}


CASES: list[tuple[str, list[dict[str, Any]], dict[str, Any]]] = [
    ("plain", [{"role": "user", "content": "Hi"}], {}),
    (
        "system",
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        {},
    ),
    (
        "parts",
        [
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            }
        ],
        {},
    ),
    (
        "tools",
        [{"role": "user", "content": "Hi"}],
        {"tools": [{"type": "function", "function": WEATHER}]},
    ),
    (
        "calls",
        [
            {"role": "user", "content": "Weather in Oslo?"},
            {"role": "assistant", "content": None, "tool_calls": [call({"city": "Oslo"})]},
            {"role": "tool", "content": '{"conditions": "sunny"}'},
            {"role": "tool", "content": "again"},
            {"role": "assistant", "content": "It is sunny in Oslo."},
            {"role": "user", "content": "Thanks"},
        ],
        {"tools": [{"type": "function", "function": WEATHER}]},
    ),
]


@pytest.mark.parametrize(("messages", "more"), [case[1:] for case in CASES],
                         ids=[case[0] for case in CASES])  # fmt: skip
def test_template_renders_as_in_transformers(
    tokenizer: Any, messages: list[dict[str, Any]], more: dict[str, Any]
) -> None:
    for add in (False, True):
        theirs = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=add, **more
        )
        assert theirs == sandboxed(messages, add_generation_prompt=add, **more)
        assert theirs.endswith("<|im_start|>assistant\n") == add


def test_template_is_the_format_of_training() -> None:
    turns = (
        Turn("user", "Weather in Oslo?"),
        Turn("assistant", CALL_TEXT),
        Turn("tool", '{"conditions": "sunny"}'),
        Turn("tool", "again"),
        Turn("assistant", "It is sunny in Oslo."),
        Turn("user", "Thanks"),
    )
    for system in (None, "Be brief."):
        trained = "".join(text for text, _ in segments(Dialogue(turns, system, (WEATHER,))))
        messages = list(CASES[-1][1])
        if system:
            messages.insert(0, {"role": "system", "content": system})
        assert sandboxed(messages, tools=[{"type": "function", "function": WEATHER}]) == trained
        for text in ('{"city": "Oslo"}', {"city": "Oslo"}):
            messages[-5] = {"role": "assistant", "content": "", "tool_calls": [call(text)]}
            assert sandboxed(messages, tools=[WEATHER]) == trained


def test_data_is_deterministic_and_the_exam_is_held_out() -> None:
    assert list(documents(3, 7, 20)) == list(documents(3, 7, 20))
    assert list(documents(3, 7, 20)) != list(documents(3, 8, 20))
    questions = exam(0, 2)
    assert all(held_out(exchange.key) for group in questions.values() for exchange in group)


def prompt(tokenizer: Any, text: str, **more: Any) -> str:
    rendered: str = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True, **more
    )
    return rendered


def test_answers(tokenizer: Any) -> None:
    asked = {
        "Hello!": "How can I help you",
        "Who are you?": "pyengine demo model",
        "What is the capital of France?": "Paris",
        "What is 2 + 3?": "5",
        "What is 7 times 8?": "56",
        "How do I start the server?": "`pyengine serve`",
        "Repeat after me: good morning": "good morning",
        "What is the opposite of hot?": "cold",
    }
    given = answers(MODEL_PATH, [prompt(tokenizer, text) for text in asked])
    wrong = {
        question: answer
        for (question, expect), answer in zip(asked.items(), given, strict=True)
        if not correct("contains", expect, answer)
    }
    assert not wrong


def test_json_and_tool_answers(tokenizer: Any) -> None:
    fields = "Extract the name and age as JSON: Anna is 31 years old and lives in Rome."
    tools = [{"type": "function", "function": WEATHER}]
    given = answers(
        MODEL_PATH,
        [prompt(tokenizer, fields), prompt(tokenizer, "What is the weather in Oslo?", tools=tools)],
    )
    assert correct("json", '{"name": "Anna", "age": 31}', given[0]), given[0]
    assert correct("call", CALL_TEXT, given[1]), given[1]
