"""Held-out questions, greedily answered and judged by rule.

Run ``python -m tools.demo_model.evaluate`` for the table in the model card.  No
question was trained on: its wording, or for sums its operands, belongs to a
sixteenth that the hash of :func:`tools.demo_model.dialogue.held_out` sets aside.
"""

import argparse
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pyengine.demo import DRAFT_PATH, MODEL_PATH
from tools.demo_model.data import exam
from tools.demo_model.dialogue import Check, Dialogue, Exchange, segments

__all__ = ["EXAM_SEED", "Score", "answers", "correct", "examine", "questions", "table"]

EXAM_SEED = 1
_BATCH = 48
_NEW_TOKENS = 220
_CALL = re.compile(r"<tool_call>\n(.*)\n</tool_call>", re.DOTALL)


@dataclass(frozen=True)
class Question:
    """A prompt as rendered text, and how its answer is judged."""

    skill: str
    prompt: str
    check: Check
    expect: str


@dataclass(frozen=True)
class Score:
    """Right answers among those asked, of one skill."""

    right: int
    asked: int

    @property
    def share(self) -> float:
        """Share of right answers, from 0 to 1."""
        return self.right / max(self.asked, 1)


def _prompt(exchange: Exchange, turns: int) -> str:
    """The rendered text before the assistant's answer at index ``turns``."""
    shown = Dialogue(exchange.turns[:turns], exchange.system, exchange.tools)
    return "".join(text for text, _ in segments(shown)) + "<|im_start|>assistant\n"


def questions(exchange: Exchange) -> list[Question]:
    """The questions of an exchange: its last answer, and for a tool also the call before."""
    last = len(exchange.turns) - 1
    if exchange.check != "call":
        prompt = _prompt(exchange, last)
        return [Question(exchange.skill, prompt, exchange.check, exchange.expect)]
    asked = [Question(exchange.skill, _prompt(exchange, 1), "call", exchange.expect)]
    if last == 3:
        words = exchange.turns[last].text
        asked.append(Question("tool results", _prompt(exchange, last), "exact", words))
    return asked


def _json(text: str) -> Any:
    """The JSON value of a text, or None."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def correct(check: Check, expect: str, answer: str) -> bool:
    """Whether an answer passes its rule."""
    answer = answer.strip()
    if check == "exact":
        return answer == expect
    if check == "contains":
        return re.search(rf"(?<!\w){re.escape(expect)}(?!\w)", answer) is not None
    if check == "call":
        found = _CALL.fullmatch(answer)
        answer, expect = found[1] if found else "", _CALL.fullmatch(expect)[1]  # type: ignore[index]
    return bool(_json(answer) == json.loads(expect))


def answers(folder: Path, prompts: list[str]) -> list[str]:
    """Greedy answers to rendered prompts by the model in a folder."""
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    # The library types generate() for its own mixin only.
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ends = set(model.generation_config.eos_token_id)
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    found = [""] * len(prompts)
    for start in range(0, len(order), _BATCH):
        chosen = order[start : start + _BATCH]
        inputs = tokenizer(
            [prompts[index] for index in chosen],
            padding=True,
            add_special_tokens=False,
            return_tensors="pt",
            return_token_type_ids=False,
        )
        with torch.inference_mode():
            output = model.generate(**inputs, max_new_tokens=_NEW_TOKENS, do_sample=False)
        for index, row in zip(chosen, output[:, inputs["input_ids"].shape[1] :], strict=True):
            ids = row.tolist()
            length = next((i for i, token in enumerate(ids) if token in ends), len(ids))
            # The tags of a tool call are special tokens, so none are skipped.
            found[index] = str(tokenizer.decode(ids[:length], skip_special_tokens=False))
    return found


def examine(folder: Path, count: int = 60, show: int = 0) -> dict[str, Score]:
    """Scores by skill of the model in a folder; prints up to ``show`` mistakes of each."""
    questions = [
        question
        for exchanges in exam(EXAM_SEED, count).values()
        for exchange in exchanges
        for question in questions(exchange)
    ]
    given = answers(folder, [question.prompt for question in questions])
    right: dict[str, list[bool]] = {}
    for question, answer in zip(questions, given, strict=True):
        marks = right.setdefault(question.skill, [])
        marks.append(correct(question.check, question.expect, answer))
        if not marks[-1] and len(marks) - sum(marks) <= show:
            print(f"{question.prompt[-300:]!r}\n  wanted {question.expect!r}\n  got {answer!r}")
    return {skill: Score(sum(marks), len(marks)) for skill, marks in sorted(right.items())}


def table(scores: dict[str, dict[str, Score]]) -> str:
    """A Markdown table: skills down, models across, and all questions last."""
    models = list(scores)
    rows = [f"| skill | questions | {' | '.join(models)} |", "|---|--:|" + "--:|" * len(models)]
    first = scores[models[0]]
    for skill in first:
        shares = " | ".join(f"{100 * scores[model][skill].share:.1f}%" for model in models)
        rows.append(f"| {skill} | {first[skill].asked} | {shares} |")
    asked = sum(score.asked for score in first.values())
    totals = (sum(score.right for score in scores[model].values()) for model in models)
    shares = " | ".join(f"**{100 * total / asked:.1f}%**" for total in totals)
    rows.append(f"| **all** | {asked} | {shares} |")
    return "\n".join(rows)


def main() -> None:
    """Print the table for the shipped models, or for one folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a folder instead of the shipped models")
    parser.add_argument("--count", type=int, default=60, help="most questions of a skill")
    parser.add_argument("--show", type=int, default=0, help="mistakes of a skill to print")
    arguments = parser.parse_args()
    folders = (
        {"model": arguments.model}
        if arguments.model
        else {"model": MODEL_PATH, "draft": DRAFT_PATH}
    )
    print(table({name: examine(path, arguments.count, arguments.show)
                 for name, path in folders.items()}))  # fmt: skip


if __name__ == "__main__":
    main()
