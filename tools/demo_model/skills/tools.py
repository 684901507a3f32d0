"""Choosing a tool, filling its arguments, and passing on its result."""

import json
import random
from collections.abc import Callable

from tools.demo_model.dialogue import Exchange, Tool, Turn
from tools.demo_model.skills.chat import UNKNOWN, small_talk
from tools.demo_model.skills.facts import fact
from tools.demo_model.skills.product import product
from tools.demo_model.skills.toolbox import TOOLBOX, ToolKind
from tools.demo_model.wording import dress, say

__all__ = ["no_tool_fits", "tool_use"]

_ABOUT = ("The {p}.", "{p}", "Which {p}", "The {p} to use", "Value of {p}")


def _signature(rng: random.Random, kind: ToolKind) -> tuple[Tool, list[str]]:
    """A signature in one of the kind's guises, with its parameters' names in order."""
    properties: dict[str, dict[str, object]] = {}
    names: list[str] = []
    described = rng.random() < 0.2
    for parameter in kind.parameters:
        name = rng.choice([n for n in parameter.names if n not in names])
        names.append(name)
        typed = "integer" if isinstance(parameter.make(rng), int) else "string"
        properties[name] = {"type": typed}
        if parameter.enum:
            properties[name]["enum"] = list(parameter.enum)
        if described:
            properties[name]["description"] = rng.choice(_ABOUT).replace("{p}", name)
    schema: dict[str, object] = {"type": "object", "properties": properties}
    if rng.random() < 0.75:
        schema["required"] = names[:1] if rng.random() < 0.4 else names
    tool: Tool = {"name": rng.choice(kind.names)}
    if rng.random() < 0.9:
        tool["description"] = rng.choice(kind.about)
    tool["parameters"] = schema
    return tool, names


def _offer(rng: random.Random, kinds: list[ToolKind]) -> list[tuple[Tool, list[str]]]:
    """Signatures of the kinds, no two of the same name."""
    offered: list[tuple[Tool, list[str]]] = []
    for kind in kinds:
        signature = _signature(rng, kind)
        if all(tool["name"] != signature[0]["name"] for tool, _ in offered):
            offered.append(signature)
    return offered


def _call(tool: Tool, arguments: dict[str, object]) -> str:
    """A tool call as the assistant writes it."""
    body = json.dumps({"name": tool["name"], "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def tool_use(rng: random.Random) -> Exchange:
    """A request that one of one to four tools answers; half go on to the result."""
    kinds = rng.sample(TOOLBOX, rng.choice((1, 1, 1, 2, 2, 2, 3, 4)))
    # Two tools of the same request would leave the choice between them open.
    if {"get_weather", "get_temperature"} <= {kind.names[0] for kind in kinds}:
        kinds = kinds[:1]
    kind = kinds[0]
    offered = _offer(rng, kinds)
    tool, names = offered[0]
    pattern = say(rng, rng.choice(kind.requests))
    values = [parameter.make(rng) for parameter in kind.parameters]
    arguments: dict[str, object] = {}
    request = pattern
    for index, (name, value) in enumerate(zip(names, values, strict=True)):
        slot = "{" + str(index) + "}"
        if slot in pattern:
            arguments[name] = value
            request = request.replace(slot, str(value))
    request = dress(rng, request, any_case=False)
    call = _call(tool, arguments)
    turns = [Turn("user", request), Turn("assistant", call)]
    told = [str(index) in kind.result[1] for index in range(len(values))]
    known = all(f"{{{i}}}" in pattern for i, used in enumerate(told) if used)
    if known and rng.random() < 0.5:
        outcome = str(kind.outcome(rng))
        result, words = (text.replace("{r}", outcome) for text in kind.result)
        for index, value in enumerate(values):
            words = words.replace(f"{{{index}}}", str(value))
        turns += [Turn("tool", result), Turn("assistant", words[0].upper() + words[1:])]
    rng.shuffle(offered)
    tools = tuple(signature for signature, _ in offered)
    return Exchange("tool calls", request, tuple(turns), "call", call, tools=tools)


def no_tool_fits(rng: random.Random) -> Exchange:
    """Tools are offered, but the question is answered in words."""
    makers: tuple[Callable[[random.Random], Exchange], ...] = (small_talk, product, fact)
    offered = _offer(rng, rng.sample(TOOLBOX, rng.choice((1, 1, 2, 3))))
    tools = tuple(signature for signature, _ in offered)
    if rng.random() < 0.8:
        inner = rng.choice(makers)(rng)
        return Exchange(
            "no tool fits", inner.key, inner.turns, inner.check, inner.expect, tools=tools
        )
    asked = say(
        rng,
        "[Who is the president of {z}|Write a poem about the sea|Explain black holes|"
        "What is the meaning of life|Who won the game in {z}|Why is the sky so high|"
        "What is the population of {z}|Tell me about the history of {z}|Who painted the {z}]?",
        z=rng.choice(("Rome", "Spain", "France", "Peru", "Texas", "the north", "the world")),
    )
    question = dress(rng, asked)
    turns = (Turn("user", question), Turn("assistant", UNKNOWN))
    return Exchange("no tool fits", question, turns, "exact", UNKNOWN, tools=tools)
