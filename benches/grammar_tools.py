"""CPU time of an agent's tools, by how many: the grammar's description and its compilation."""

import random
from time import process_time
from typing import Literal

from pyengine._core import GrammarContext, compile_grammar
from pyengine.chat.formats import FORMATS
from pyengine.chat.tools import Tool

SIZES = (10, 100, 500, 1000)
ARGUMENTS = (
    {"type": "string"},
    {"type": "string", "description": "What to look for, in plain words.", "minLength": 1},
    {"type": "integer", "minimum": 1, "maximum": 100},
    {"type": "boolean"},
    {"enum": ["open", "closed", "all"]},
    {"type": "array", "items": {"type": "string"}},
    {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
)
ROUNDS = 3
PATIENCE_S = 60.0


def _tools(count: int) -> list[Tool]:
    """Tools with two to eight arguments each; no two have the same names."""
    draw = random.Random(count)
    tools = []
    for number in range(count):
        properties = {
            f"arg_{number}_{at}": draw.choice(ARGUMENTS) for at in range(draw.randint(2, 8))
        }
        parameters = {"type": "object", "properties": properties, "required": list(properties)[:2]}
        tools.append(Tool(f"tool_{number}", "", parameters))
    return tools


def figures(context: GrammarContext) -> dict[str, dict[str, float]]:
    """Milliseconds of CPU by choice and number of tools: the best of three, each compiled anew."""
    form = FORMATS["hermes"]
    out: dict[str, dict[str, float]] = {}
    choices: tuple[Literal["required", "auto"], ...] = ("required", "auto")
    for choice in choices:
        for count in SIZES:
            times = []
            for _ in range(ROUNDS):
                tools = _tools(count)
                start = process_time()
                grammar = form.grammar(tools, choice, parallel=choice == "auto")
                if grammar is None:
                    raise RuntimeError("the format holds calls to no grammar")
                described = process_time()
                compile_grammar(context, grammar.description(), PATIENCE_S)
                times.append((process_time() - start, described - start))
            whole, description = min(times)
            out[f"{choice}, {count} tools"] = {
                "all_ms": round(1e3 * whole, 1),
                "description_ms": round(1e3 * description, 1),
            }
    return out
