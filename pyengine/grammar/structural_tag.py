"""Structural tags, as xgrammar describes and vLLM's requests spell them, lowered to the algebra.

Two forms: ``{"structures": [{"begin", "schema", "end"}], "triggers": [...]}``, and the newer
``{"type": "structural_tag", "format": {"type": ...}}`` whose formats are documented under
*Structural Tag* in xgrammar's documentation. What cannot be lowered is refused by its path.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from pyengine.errors import InvalidRequestError
from pyengine.grammar import algebra
from pyengine.grammar.algebra import any_of, free_text, optional, repeat, sequence, text
from pyengine.grammar.description import Grammar
from pyengine.grammar.parameters import Parameter, ParameterTags, parameters_of

Follow = tuple[str, ...] | None
"""Strings of which one comes next; None where that is not known to be a fixed string."""


def structural_tag(tag: Mapping[str, Any] | str) -> Grammar:
    """Free text in which marked parts follow their own grammars.

    Args:
        tag: Either form, as a dict or JSON text.

    Raises:
        InvalidRequestError: It is malformed, or holds what no grammar here can say; names where.
    """
    if isinstance(tag, str):
        try:
            tag = msgspec.json.decode(tag)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise InvalidRequestError(f"the structural tag is not valid JSON: {error}") from None
    if not isinstance(tag, Mapping):
        raise InvalidRequestError("a structural tag must be an object")
    if "structures" in tag or "triggers" in tag:
        return _structures(tag)
    at = "structural_tag"
    _keys(tag, at, {"type", "format"})
    if tag.get("type", "structural_tag") != "structural_tag":
        raise InvalidRequestError(f"'{at}.type' must be structural_tag, not {tag['type']!r}")
    return _format(tag.get("format"), f"{at}.format", ())


def _structures(tag: Mapping[str, Any]) -> Grammar:
    """The older form: triggered tags whose contents are schemas."""
    at = "structural_tag"
    _keys(tag, at, {"type", "structures", "triggers"})
    structures = _objects(tag.get("structures"), f"{at}.structures")
    tags = []
    for number, structure in enumerate(structures):
        _keys(structure, f"{at}.structures[{number}]", {"begin", "schema", "end"})
        content = {"type": "json_schema", "json_schema": structure.get("schema", True)}
        tags.append(
            {"begin": structure.get("begin"), "content": content, "end": structure.get("end")}
        )
    return _triggered_tags({"triggers": tag.get("triggers"), "tags": tags}, at, ())


def _format(given: Any, at: str, follow: Follow) -> Grammar:
    if not isinstance(given, Mapping):
        raise InvalidRequestError(f"'{at}' must be an object")
    kind = given.get("type")
    found = _FORMATS.get(kind) if isinstance(kind, str) else None
    if found is None:
        raise InvalidRequestError(f"'{at}.type' is {kind!r}, which is not supported")
    lower, keys = found
    _keys(given, at, {"type", *keys})
    return lower(given, at, follow)


def _const_string(given: Mapping[str, Any], at: str, follow: Follow) -> Grammar:
    return text(_string(given.get("value"), f"{at}.value"))


def _json_schema(given: Mapping[str, Any], at: str, follow: Follow) -> Grammar:
    schema = given.get("json_schema")
    if not isinstance(schema, Mapping | bool):
        raise InvalidRequestError(f"'{at}.json_schema' must be a JSON Schema")
    style = given.get("style", "json")
    if style == "json":
        return algebra.json_schema(schema)
    if not isinstance(style, str) or style not in _XML_STYLES:
        raise InvalidRequestError(f"'{at}.style' is {style!r}, which is not supported")
    return _xml(schema, at, style)


def _qwen_xml(given: Mapping[str, Any], at: str, follow: Follow) -> Grammar:
    return _xml(given.get("json_schema"), at, "qwen_xml")


_DSML = "\uff5cDSML\uff5c"
_XML_STYLES = {
    "qwen_xml": ParameterTags(between=">", after="</parameter>"),
    "minimax_xml": ParameterTags('<parameter name="', '">', "</parameter>"),
    "deepseek_xml": ParameterTags(
        f'<{_DSML}parameter name="', '" string="', f"</{_DSML}parameter>"
    ),
    "glm_xml": ParameterTags("<arg_key>", "</arg_key><arg_value>", "</arg_value>"),
}
"""How models write the parameters of a call; a line end may stand on either side of each value."""


def _xml(schema: Any, at: str, style: str) -> Grammar:
    if not isinstance(schema, Mapping):
        raise InvalidRequestError(f"'{at}.json_schema' must be the schema of an object")
    parts = []
    for parameter in parameters_of(schema, strict=True).listed:
        part = sequence(_xml_parameter(parameter, style), optional(text("\n")))
        parts.append(part if parameter.required else optional(part))
    return sequence(*parts)


def _xml_parameter(parameter: Parameter, style: str) -> Grammar:
    """A parameter with its value on the tags' line, or on lines of its own."""
    tags = _XML_STYLES[style]
    tags.check(parameter)
    value = parameter.plain_grammar(tags.end, strict=True)
    head = text(f"{tags.before}{parameter.name}{tags.between}")
    if style == "deepseek_xml":  # says whether the value is a string as it is
        kinds = {"true": "string" in parameter.types, "false": not parameter.is_text}
        head = sequence(head, any_of(*(text(f'{kind}">') for kind, is_ in kinds.items() if is_)))
    line_end = optional(text("\n"))
    return sequence(head, line_end, value, line_end, text(tags.after))


def _any_text(given: Mapping[str, Any], at: str, follow: Follow) -> Grammar:
    if follow is None:
        raise InvalidRequestError(f"'{at}' must be followed by a fixed string, or by nothing")
    return free_text((*follow, *_strings(given.get("excludes", ()), f"{at}.excludes")))


def _grammar(given: Mapping[str, Any], at: str, follow: Follow) -> Grammar:
    return algebra.ebnf(_string(given.get("grammar"), f"{at}.grammar"))


def _regex(given: Mapping[str, Any], at: str, follow: Follow) -> Grammar:
    return algebra.regex(_string(given.get("pattern"), f"{at}.pattern"))


def _sequence(given: Mapping[str, Any], at: str, follow: Follow) -> Grammar:
    elements = _objects(given.get("elements"), f"{at}.elements")
    parts: list[Grammar] = []
    for number in reversed(range(len(elements))):
        element = elements[number]
        parts.append(_format(element, f"{at}.elements[{number}]", follow))
        follow = _beginnings(element, follow)
    return sequence(*reversed(parts))


def _or(given: Mapping[str, Any], at: str, follow: Follow) -> Grammar:
    elements = _objects(given.get("elements"), f"{at}.elements")
    return any_of(
        *(_format(each, f"{at}.elements[{number}]", follow) for number, each in enumerate(elements))
    )


def _tag(given: Mapping[str, Any], at: str, follow: Follow) -> Grammar:
    begin = _marker(given.get("begin"), f"{at}.begin")
    ends = given.get("end")
    listed = ends if isinstance(ends, list) else [ends]
    markers = [_marker(end, f"{at}.end") for end in listed]
    if not markers:
        raise InvalidRequestError(f"'{at}.end' must hold a string")
    inner = tuple(marker for marker in markers if marker)
    content = _format(
        given.get("content"), f"{at}.content", inner if len(inner) == len(markers) else follow
    )
    return sequence(text(begin), content, any_of(*(text(marker) for marker in markers)))


def _triggered_tags(given: Mapping[str, Any], at: str, follow: Follow) -> Grammar:
    if follow is None:
        raise InvalidRequestError(f"'{at}' must be followed by a fixed string, or by nothing")
    triggers = _strings(given.get("triggers"), f"{at}.triggers")
    tags = _objects(given.get("tags"), f"{at}.tags")
    if not triggers or not tags:
        raise InvalidRequestError(f"'{at}' needs triggers and tags")
    for number, tag in enumerate(tags):
        begin = _marker(tag.get("begin"), f"{at}.tags[{number}].begin")
        if sum(begin.startswith(trigger) for trigger in triggers) != 1:
            raise InvalidRequestError(
                f"'{at}.tags[{number}].begin' must begin with exactly one of the triggers"
            )
    excludes = _strings(given.get("excludes", ()), f"{at}.excludes")
    between = free_text((*triggers, *excludes, *follow))
    made = _tags(tags, at, (*triggers, *follow))
    least = 1 if given.get("at_least_one") else 0
    if given.get("stop_after_first"):
        return sequence(between, made if least else optional(made))
    return sequence(between, repeat(sequence(made, between), min=least))


def _tags_with_separator(given: Mapping[str, Any], at: str, follow: Follow) -> Grammar:
    tags = _objects(given.get("tags"), f"{at}.tags")
    separator = _string(given.get("separator"), f"{at}.separator")
    made = _tags(tags, at, None)
    least = 1 if given.get("at_least_one") else 0
    if given.get("stop_after_first"):
        return made if least else optional(made)
    return repeat(made, min=least, separator=text(separator) if separator else None)


def _tags(tags: Sequence[Mapping[str, Any]], at: str, follow: Follow) -> Grammar:
    made = []
    for number, tag in enumerate(tags):
        _keys(tag, f"{at}.tags[{number}]", {"type", "begin", "content", "end"})
        made.append(_tag(tag, f"{at}.tags[{number}]", follow))
    return any_of(*made)


def _dispatch(given: Mapping[str, Any], at: str, follow: Follow) -> Grammar:
    if follow is None:
        raise InvalidRequestError(f"'{at}' must be followed by a fixed string, or by nothing")
    rules = given.get("rules")
    if not isinstance(rules, list) or not all(isinstance(r, list) and len(r) == 2 for r in rules):
        raise InvalidRequestError(f"'{at}.rules' must be a list of pairs")
    patterns = tuple(_string(r[0], f"{at}.rules") for r in rules)
    excludes = _strings(given.get("excludes", ()), f"{at}.excludes")
    between = free_text((*patterns, *excludes, *follow))
    made = any_of(
        *(
            sequence(text(pattern), _format(inner, f"{at}.rules[{number}][1]", None))
            for number, (pattern, inner) in enumerate(rules)
        )
    )
    if given.get("loop", True):
        return sequence(between, repeat(sequence(made, between)))
    return sequence(between, optional(made))


def _token(given: Mapping[str, Any], at: str, follow: Follow) -> Grammar:
    return text(_marker(given, at))


def _repeated(least: int, most: int | None) -> Callable[[Mapping[str, Any], str, Follow], Grammar]:
    def lower(given: Mapping[str, Any], at: str, follow: Follow) -> Grammar:
        inner = _format(given.get("content"), f"{at}.content", None if most != 1 else follow)
        return repeat(inner, min=least, max=most)

    return lower


def _repeat(given: Mapping[str, Any], at: str, follow: Follow) -> Grammar:
    least, most = given.get("min"), given.get("max")
    if not isinstance(least, int) or not isinstance(most, int):
        raise InvalidRequestError(f"'{at}' needs the integers min and max")
    return _repeated(least, None if most == -1 else most)(given, at, follow)


_FORMATS: dict[str, tuple[Callable[[Mapping[str, Any], str, Follow], Grammar], frozenset[str]]] = {
    "const_string": (_const_string, frozenset({"value"})),
    "json_schema": (_json_schema, frozenset({"json_schema", "style"})),
    "qwen_xml_parameter": (_qwen_xml, frozenset({"json_schema"})),
    "any_text": (_any_text, frozenset({"excludes"})),
    "grammar": (_grammar, frozenset({"grammar"})),
    "regex": (_regex, frozenset({"pattern"})),
    "sequence": (_sequence, frozenset({"elements"})),
    "or": (_or, frozenset({"elements"})),
    "tag": (_tag, frozenset({"begin", "content", "end"})),
    "triggered_tags": (
        _triggered_tags,
        frozenset({"triggers", "tags", "at_least_one", "stop_after_first", "excludes"}),
    ),
    "tags_with_separator": (
        _tags_with_separator,
        frozenset({"tags", "separator", "at_least_one", "stop_after_first"}),
    ),
    "optional": (_repeated(0, 1), frozenset({"content"})),
    "plus": (_repeated(1, None), frozenset({"content"})),
    "star": (_repeated(0, None), frozenset({"content"})),
    "repeat": (_repeat, frozenset({"content", "min", "max"})),
    "dispatch": (_dispatch, frozenset({"rules", "loop", "excludes"})),
    "token": (_token, frozenset({"token"})),
}


def _beginnings(given: Mapping[str, Any], follow: Follow) -> Follow:
    """The fixed strings with which a format begins, if that is all it can begin with."""
    match given.get("type"):
        case "const_string":
            return (given["value"],) if given["value"] else follow
        case "tag" if isinstance(given["begin"], str) and given["begin"]:
            return (given["begin"],)
        case "token":
            return (given["token"],)
        case "or":
            found = [_beginnings(each, follow) for each in given["elements"]]
            if any(each is None for each in found):
                return None
            return tuple(text for each in found if each is not None for text in each)
    return None


def _keys(given: Mapping[str, Any], at: str, known: set[str]) -> None:
    for key in given.keys() - known:
        raise InvalidRequestError(f"'{at}.{key}' is not supported")


def _marker(value: Any, at: str) -> str:
    """A string, or a token by its spelling."""
    if isinstance(value, Mapping):
        _keys(value, at, {"type", "token"})
        value = value.get("token")
        if isinstance(value, int):
            raise InvalidRequestError(f"'{at}' names a token by number; spell it instead")
    return _string(value, at)


def _string(value: Any, at: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequestError(f"'{at}' must be a string")
    return value


def _strings(values: Any, at: str) -> tuple[str, ...]:
    if not isinstance(values, list | tuple):
        raise InvalidRequestError(f"'{at}' must be a list of strings")
    return tuple(_string(value, at) for value in values)


def _objects(values: Any, at: str) -> list[Mapping[str, Any]]:
    if not isinstance(values, list) or not all(isinstance(each, Mapping) for each in values):
        raise InvalidRequestError(f"'{at}' must be a list of objects")
    return values
