"""Folders of families as the hub has them: their chat format, their ends, their tool calls."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub.utils import filter_repo_objects  # type: ignore[attr-defined]  # not listed
from tokenizers import AddedToken, Tokenizer

from pyengine import AsyncEngine, SamplingParams
from pyengine.chat.tools import Tool
from pyengine.model.weights.folder import model_folder
from tests.chat.test_formats import parse, told
from tests.hub_templates import (
    CHATML,
    COMMAND,
    EXAONE,
    GEMMA4,
    GLM,
    GRANITE,
    INST,
    INST_NAMED,
    MINIMAX,
    OLMO,
    SEED,
)
from tests.model.families import FAMILIES
from tests.models import VOCAB_SIZE, random_model

QUESTION = [{"role": "user", "content": "Rain in Paris?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@dataclass(frozen=True)
class Hub:
    """What a family's folders hold.

    Attributes:
        family: As in FAMILIES.
        template: Its chat template.
        tokens: Added to the vocabulary, by spelling: whether they are special.
        eos_token: Of tokenizer_config.json.
        ends: Of generation_config.json.
        chat_format: What the family is called.
    """

    family: str
    template: str
    tokens: Mapping[str, bool]
    eos_token: str
    ends: tuple[str, ...]
    chat_format: str


def special(*tokens: str) -> dict[str, bool]:
    """These, as special tokens."""
    return dict.fromkeys(tokens, True)


_THINK = {"<think>": False, "</think>": False}
_QWEN = {"<|endoftext|>": True, "<|im_start|>": True, "<|im_end|>": True, "<tool_call>": False}
HUBS = {
    "Qwen2.5": Hub(
        "qwen2",
        CHATML.replace("NO THINKING", ""),
        _QWEN,
        "<|im_end|>",
        ("<|im_end|>", "<|endoftext|>"),
        "hermes",
    ),
    "Qwen3": Hub(
        "qwen3",
        CHATML.replace("NO THINKING", "<think>\n\n</think>\n"),
        _QWEN | {"<think>": False, "</think>": False},
        "<|im_end|>",
        ("<|im_end|>", "<|endoftext|>"),
        "qwen3",
    ),
    "Mistral": Hub(
        "mistral",
        INST,
        {"<s>": True, "</s>": True, "[INST]": True, "[/INST]": True, "[TOOL_CALLS]": True},
        "</s>",
        ("</s>",),
        "mistral",
    ),
    "Ministral": Hub(
        "ministral",
        INST_NAMED,
        special("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[ARGS]"),
        "</s>",
        ("</s>",),
        "mistral_args",
    ),
    "GLM-4.5": Hub(
        "glm 4.5",
        GLM,
        special("[gMASK]", "<sop>", "<|endoftext|>", "<|user|>", "<|assistant|>", "<|observation|>")
        | _THINK
        | {"<tool_call>": False, "</tool_call>": False},
        "<|endoftext|>",
        ("<|endoftext|>", "<|user|>", "<|observation|>"),
        "glm45",
    ),
    "MiniMax-M2": Hub(
        "minimax-m2",
        MINIMAX,
        special("]~!b[", "]~b]", "[e~[", "<minimax:tool_call>", "</minimax:tool_call>") | _THINK,
        "[e~[",
        ("[e~[",),
        "minimax_m2",
    ),
    "Seed-OSS": Hub(
        "seed-oss",
        SEED,
        special("<seed:bos>", "<seed:eos>", "<seed:think>", "</seed:think>", "<seed:tool_call>"),
        "<seed:eos>",
        ("<seed:eos>",),
        "seed_oss",
    ),
    "Command R7B": Hub(
        "cohere2",
        COMMAND,
        special(
            *("<s>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|USER_TOKEN|>"),
            *("<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|START_ACTION|>", "<|END_ACTION|>"),
            *("<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        ),
        "<|END_OF_TURN_TOKEN|>",
        ("<|END_OF_TURN_TOKEN|>",),
        "command",
    ),
    "Granite 3.3": Hub(
        "granite",
        GRANITE,
        special("<|end_of_text|>", "<|start_of_role|>", "<|end_of_role|>", "<|tool_call|>"),
        "<|end_of_text|>",
        ("<|end_of_text|>",),
        "granite_thinking",
    ),
    "Gemma 4": Hub(
        "gemma 4",
        GEMMA4,
        special(
            *("<bos>", "<eos>", "<|turn>", "<turn|>", "<|tool>", "<tool|>", "<|channel>"),
            *("<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>"),
            '<|"|>',
        ),
        "<eos>",
        ("<eos>", "<turn|>", "<|tool_response>"),
        "gemma4",
    ),
    "OLMo 3": Hub(
        "olmo 3",
        OLMO,
        special("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        "<|endoftext|>",
        ("<|im_end|>", "<|endoftext|>"),
        "olmo3",
    ),
    "EXAONE 4": Hub(
        "exaone 4",
        EXAONE,
        special("[|endofturn|]", "[|assistant|]", "[|user|]", "[|system|]") | _THINK,
        "[|endofturn|]",
        ("[|endofturn|]",),
        "qwen3",
    ),
    "SmolLM3": Hub(
        "smollm 3",
        CHATML.replace("NO THINKING", "<think>\n\n</think>\n"),
        _QWEN | _THINK,
        "<|im_end|>",
        ("<|im_end|>",),
        "qwen3",
    ),
}
QUICK = ("Qwen2.5", "Qwen3", "Mistral")


@pytest.fixture(
    params=[pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in HUBS]
)
def hub(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Hub, Path]:
    """A family, and a folder of a random model."""
    hub = HUBS[request.param]
    kind, own = FAMILIES[hub.family]
    random_model(tmp_path, kind, **own)
    path = tmp_path / "tokenizer.json"
    spec = json.loads(path.read_text())
    spec["added_tokens"] = []
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    for token, special in hub.tokens.items():
        tokenizer.add_tokens([AddedToken(token, special=special, normalized=False)])
    tokenizer.save(str(path))
    ids = [tokenizer.token_to_id(token) for token in hub.ends]
    write(tmp_path / "generation_config.json", eos_token_id=ids if len(ids) > 1 else ids[0])
    write(
        tmp_path / "tokenizer_config.json",
        chat_template=hub.template,
        eos_token=hub.eos_token,
        bos_token="<s>" if "<s>" in hub.tokens else None,
    )
    config = json.loads((tmp_path / "config.json").read_text())
    write(tmp_path / "config.json", **config | {"eos_token_id": ids[0], "vocab_size": VOCAB_SIZE})
    return hub, tmp_path


def write(path: Path, **content: Any) -> None:
    path.write_text(json.dumps(content))


def test_only_needed_files_of_a_repository_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [
        ".gitattributes",
        "README.md",
        "chat_template.jinja",
        "config.json",
        "consolidated-00001-of-00002.safetensors",
        "consolidated.safetensors",
        "consolidated.safetensors.index.json",
        "generation_config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "params.json",
        "pytorch_model.bin",
        "tokenizer.json",
        "tokenizer.model",
    ]
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    taken: set[str] = set()

    def download(
        _: str, allow_patterns: Any, ignore_patterns: Any, *, dry_run: bool = False, **__: Any
    ) -> Any:
        found = filter_repo_objects(
            files, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns
        )
        if dry_run:
            return [SimpleNamespace(filename=name) for name in found]
        taken.update(found)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert model_folder("mistralai/Mistral-7B-Instruct-v0.3") == tmp_path
    left = {name for name in files if "consolidated" in name}
    left |= {".gitattributes", "README.md", "pytorch_model.bin"}
    left |= {"model-00002-of-00002.safetensors"}  # the index does not name it
    assert set(files) - taken == left


async def test_the_family_and_its_ends(hub: tuple[Hub, Path]) -> None:
    family, folder = hub
    async with AsyncEngine(folder) as engine:
        assert engine.handler.format is not None
        assert engine.handler.format.name == family.chat_format
        ids = [engine.tokenizer.token_id(token) for token in family.ends]
        assert sorted(ids) == list(engine.tokenizer.eos_token_ids)  # type: ignore[type-var]
        for token in ids:
            assert token is not None
            likely = SamplingParams(temperature=0, max_tokens=20, logit_bias={token: 100.0})
            answer = await engine.chat(QUESTION, likely)
            assert (answer.finish_reason, answer.stop_token) == ("stop", token)
            assert answer.text == ""


async def test_a_call_comes_in_the_familys_words_and_is_read(hub: tuple[Hub, Path]) -> None:
    _, folder = hub
    async with AsyncEngine(folder) as engine:
        form, template = engine.handler.format, engine.handler.template
        assert form is not None
        assert template is not None
        switched = {"enable_thinking", "thinking"} & set(template.variables)
        answer = await engine.chat(
            QUESTION,
            _ending_thoughts(engine),
            tools=[WEATHER],
            tool_choice="required",
            parallel_tool_calls=False,
            reasoning=False if switched else None,
        )
        assert answer.finish_reason == "tool_calls"
        (call,) = answer.tool_calls
        assert call.name == "get_weather"
        assert json.loads(call.arguments)["city"] in ("Paris", "Oslo")
        result = {"role": "tool", "tool_call_id": call.id, "content": "Rain."}
        prompt = engine.render([*QUESTION, answer.message, result], tools=[WEATHER])
        # What the template writes of the call is read as that call.
        said = engine.tokenizer.decode(prompt).partition(QUESTION[0]["content"])[2]
        parser = form.parser([Tool.from_openai(WEATHER)])
        _, _, read = told(parse(parser, [said]))
        assert [(name, json.loads(text)) for name, text in read] == [
            (call.name, json.loads(call.arguments))
        ]


def _ending_thoughts(engine: AsyncEngine) -> SamplingParams:
    """Sampling by which a random model ends its thoughts at once."""
    ends = [
        engine.tokenizer.token_id(mark)
        for mark in ("</think>", "</seed:think>", "<|END_THINKING|>")
    ]
    bias = {token: 100.0 for token in ends if token is not None}
    return SamplingParams(temperature=0, max_tokens=150, logit_bias=bias)
