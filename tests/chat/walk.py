"""Random texts of a grammar's description, with what the walker meant by them."""

import ast
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from pyengine.grammar import Grammar

LETTERS = ["a", "Z", " ", "é", "中", "👋", ".", "\n", "0"]
"""What plain text is made of."""

HOSTILE = [
    *"<>{}[]()\"'\\`|/=,:;",
    *("```", "```json", "```tool_code", "functools", "functools[", "null", "\\u12", "get_weather"),
    *("<tool_call>", "</tool_call>", "<think>", "</think>", '{"name": "', '"arguments"'),
    *("<function=", "</function>", "<parameter", "</parameter>", "to=functions."),
    *("[TOOL_CALLS]", "[ARGS]", "[THINK]", "<|python_tag|>", "<|tool_call|>", "<|/tool_call|>"),
    *("<|channel|>", "<|end|>", "<|message|>", "<|start|>", "<|constrain|>", "<|call|>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", '<invoke name="', "</invoke>"),
    *("<minimax:tool_call>", "<seed:tool_call>", "</seed:tool_call>", "<|START_ACTION|>"),
    *("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<response>", "</response>", "<TOOLCALL>"),
    *("<function_calls>", "</function_calls>", "<seed:think>", "<|END_THINKING|>"),
    *('<|"|>', "<|tool_call>", "<tool_call|>", "<|channel>thought", "<channel|>", "call:now{}"),
    *("<｜tool▁calls▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"),
]
"""What might lead a parser astray."""


@dataclass
class Truth:
    """What a text says."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[tuple[str, Any]] = field(default_factory=list)


class Walker:
    """Draws one text of a grammar. Only schemas of the tests' tools are known to it."""

    def __init__(self, draw: Callable[[Any], Any], pieces: list[str]) -> None:
        self.truth = Truth()
        self._draw = draw
        self._pieces = pieces
        self._arguments: dict[str, Any] = {}
        self._name = ""

    def text(self, grammar: Grammar) -> str:
        tag: tuple[Any, ...] = grammar.tag or ("",)
        match tag[0]:
            case "content" | "reasoning":
                made = self._text(grammar)
                getattr(self.truth, tag[0]).append(made)
                return made
            case "call":
                self._arguments = {}
                made = self._text(grammar)
                self.truth.calls.append((tag[1], self._arguments))
                return made
            case "parameter":
                self._name = self._draw(st.sampled_from(["x", "y_2", "Other"]))
                return self._name
            case "arguments":
                self._arguments = self._value_of(grammar)
                return json.dumps(self._arguments, ensure_ascii=False)
            case "keyed":
                made = self._text(grammar)
                self._arguments[tag[1].name or self._name] = _keyed(made)
                return made
            case "argument":
                return self._argument(grammar, tag[1])
        return self._text(grammar)

    def _argument(self, grammar: Grammar, parameter: Any) -> str:
        text = self._text(grammar)
        if parameter.types == {"string"} and not text.startswith('"'):
            value = text  # as it is, between tags
        elif grammar.kind == "free_text":
            value = json.loads(parameter.json_of(text))
        else:
            try:
                value = json.loads(text)
            except ValueError:
                try:
                    value = ast.literal_eval(text)
                except (ValueError, SyntaxError):
                    value = text
        self._arguments[parameter.name or self._name] = value
        return text

    def _text(self, grammar: Grammar) -> str:
        fields = grammar.fields
        match grammar.kind:
            case "text":
                return str(fields["text"])
            case "choice":
                return str(self._draw(st.sampled_from(fields["choices"])))
            case "sequence":
                return "".join([self.text(part) for part in fields["parts"]])
            case "any_of":
                return self.text(self._draw(st.sampled_from(fields["options"])))
            case "optional":
                return self.text(fields["part"]) if self._draw(st.booleans()) else ""
            case "repeat":
                most = fields["min"] + 2 if fields["max"] is None else fields["max"]
                made = []
                for number in range(self._draw(st.integers(fields["min"], most))):
                    if number and fields["separator"] is not None:
                        made.append(self.text(fields["separator"]))
                    made.append(self.text(fields["part"]))
                return "".join(made)
            case "free_text":
                return self.free(fields["until"])
            case "regex":
                return str(self._draw(st.from_regex(fields["pattern"], fullmatch=True)))
            case "json_schema":
                return json.dumps(self._value_of(grammar), ensure_ascii=False)
            case "any_order":
                chosen = [part for part in fields["optional"] if self._draw(st.booleans())]
                parts = self._draw(st.permutations([*fields["required"], *chosen]))
                separator = fields["separator"]
                between = "" if separator is None else self.text(separator)
                return between.join([self.text(part) for part in parts])
        raise AssertionError(grammar.kind)

    def _value_of(self, grammar: Grammar) -> Any:
        """A value of a schema, with its keys in the order of the grammar."""
        value = self.value(grammar.fields["schema"])
        return self._shuffled(value) if grammar.fields.get("key_order") == "any" else value

    def _shuffled(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: self._shuffled(value[key]) for key in self._draw(st.permutations([*value]))}

    def free(self, until: list[str]) -> str:
        made = self._any_text()
        while any(mark in made for mark in until):
            for mark in until:
                made = made.replace(mark, "")
        return made

    def _any_text(self) -> str:
        return "".join(self._draw(st.lists(st.sampled_from(self._pieces), max_size=12)))

    def value(self, schema: Any) -> Any:
        """A value that satisfies a schema."""
        if "enum" in schema:
            return self._draw(st.sampled_from(schema["enum"]))
        if "anyOf" in schema:
            return self.value(self._draw(st.sampled_from(schema["anyOf"])))
        match schema["type"]:
            case "object":
                required = schema.get("required", ())
                return {
                    name: self.value(each)
                    for name, each in schema.get("properties", {}).items()
                    if name in required or self._draw(st.booleans())
                }
            case "array":
                return [self.value(schema["items"]) for _ in range(self._draw(st.integers(0, 2)))]
            case "string":
                return self._any_text()
            case "integer":
                return self._draw(st.integers(-(10**9), 10**9))
            case "number":
                return self._draw(st.sampled_from([0, -1.5, 3, 1e-07, 2.25]))
            case "boolean":
                return self._draw(st.booleans())
            case "null":
                return None
        raise AssertionError(schema)


def _keyed(text: str) -> Any:
    """A value with bare keys, and with marks around strings."""
    pieces = text.split('<|"|>')
    for at, piece in enumerate(pieces):
        pieces[at] = json.dumps(piece) if at % 2 else re.sub(r"([\w.-]+):", r'"\1":', piece)
    return json.loads("".join(pieces))
