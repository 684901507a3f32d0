"""A chat format's ends of turns end an answer under a grammar, whatever generation_config says."""

import json
import shutil
from pathlib import Path
from typing import Any

from pyengine import AsyncEngine, SamplingParams
from pyengine.grammar import regex
from pyengine.tokenizer import Tokenizer

END = "<|eot_id|>"


def _without_eos(demo_model: Path, folder: Path) -> Path:
    """The demo model, whose end of turn has another name and stands in no configuration."""
    shutil.copytree(demo_model, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    end = Tokenizer.from_folder(demo_model).eos_token_ids[0]
    added = next(token for token in tokenizer["added_tokens"] if token["id"] == end)
    old, added["content"] = added["content"], END
    if old in tokenizer["model"]["vocab"]:
        tokenizer["model"]["vocab"][END] = tokenizer["model"]["vocab"].pop(old)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        if (path := folder / name).exists():
            found = json.loads(path.read_text())
            for key in ("eos_token_id", "eos_token"):
                found.pop(key, None)
            path.write_text(json.dumps(found))
    return folder


async def test_the_end_of_a_turn_ends_an_answer_under_a_grammar(
    demo_model: Path, tmp_path: Path
) -> None:
    folder = _without_eos(demo_model, tmp_path / "model")
    settings: dict[str, Any] = {
        "device": "simulated",
        "simulated_step_ms": 1.0,
        "chat_format": "llama3_json",
    }
    async with AsyncEngine(folder, **settings) as engine:
        assert engine.tokenizer.eos_token_ids == ()
        question = [{"role": "user", "content": "Go on."}]
        params = SamplingParams(max_tokens=500, seed=1)
        answer = await engine.chat(question, params, grammar=regex("[ab]+"))
        assert answer.finish_reason == "stop"
        assert answer.stop_token == engine.tokenizer.token_id(END)
