"""The filters and methods that chat templates may use: those whose results are in bounds.

Most make no more than they are given. Those that can make much out of little are checked before
they run; all others are refused, so that a new version of Python or jinja opens nothing.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from typing import Any, Protocol

from jinja2 import TemplateError
from jinja2.filters import FILTERS


class Bounds(Protocol):
    """What the functions ask of :class:`pyengine.chat.sandbox.TemplateSandbox`."""

    concat: Any

    def tick(self) -> None:
        """Look at the clock."""

    def each(self, values: Iterable[Any]) -> Iterator[Any]:
        """``values``, with a look at the clock for each."""

    def weighed(self, value: Any) -> Any:
        """``value``, if it is not too large."""

    def weight(self, value: Any) -> int:
        """The weight of a value."""

    def bound(self, weight: int) -> None:
        """Refuse to make what would weigh so much."""


# Objects whose methods are C code, which the clock does not stop.
BUILTINS = (str, bytes, int, float, list, tuple, dict, set, frozenset, range, type)

_METHODS: dict[type, frozenset[str]] = {
    str: frozenset(
        "capitalize casefold count endswith find index isalnum isalpha isascii isdecimal isdigit "
        "isidentifier islower isnumeric isprintable isspace istitle isupper lower lstrip partition "
        "removeprefix removesuffix rfind rindex rpartition rsplit rstrip split splitlines "
        "startswith strip swapcase title upper".split()
    ),
    list: frozenset(("copy", "count", "index")),
    tuple: frozenset(("count", "index")),
    dict: frozenset(("copy", "get", "items", "keys", "values")),
    float: frozenset(("is_integer",)),
}

# Filters of jinja whose results are no larger than what they are given, or a few times as large.
_PLAIN = (
    "abs attr capitalize count d default dictsort e escape first float forceescape groupby int "
    "items last length list lower max min random reverse safe sort string striptags title trim "
    "truncate unique upper urlencode wordcount"
).split()
# Filters that run Python for each entry.
_MAPPING = ("map", "reject", "rejectattr", "select", "selectattr")

_WIDE = re.compile(r"\d{4}")
_NESTED = re.compile(r"\{[^{}]*\{")
MAX_INDENT = 100
_to_json = json.JSONEncoder(ensure_ascii=False).encode


def filters(sandbox: Bounds) -> dict[str, Callable[..., Any]]:
    """The filters of ``sandbox``, by name."""

    def weighing(function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, whose result is weighed."""

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            sandbox.tick()
            return sandbox.weighed(function(*args, **kwargs))

        return call

    def mapping(function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, which takes a context and then entries, with a look at the clock each."""

        @wraps(function)
        def call(context: Any, entries: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
            return function(context, sandbox.each(entries), *args, **kwargs)

        return call

    return {
        **{name: weighing(FILTERS[name]) for name in _PLAIN},
        **{name: mapping(FILTERS[name]) for name in _MAPPING},
        **{name: weighing(function) for name, function in _checked(sandbox).items()},
    }


def _checked(sandbox: Bounds) -> dict[str, Callable[..., Any]]:
    """The filters that can make much out of little, each with its check."""

    @wraps(FILTERS["batch"])
    def batch(value: Iterable[Any], linecount: int, fill_with: Any = None) -> Any:
        sandbox.bound(linecount * (1 + sandbox.weight(fill_with)))
        return list(FILTERS["batch"](value, linecount, fill_with))

    @wraps(FILTERS["slice"])
    def slices(eval_ctx: Any, value: Any, slices: int, fill_with: Any = None) -> Any:
        sandbox.bound(slices * (1 + sandbox.weight(fill_with)))
        return list(FILTERS["slice"](eval_ctx, value, slices, fill_with))

    @wraps(FILTERS["center"])
    def center(value: str, width: int = 80) -> Any:
        sandbox.bound(width)
        return FILTERS["center"](value, width)

    @wraps(FILTERS["format"])
    def format_(value: Any, *args: Any, **kwargs: Any) -> Any:
        check_widths(str(value))
        return FILTERS["format"](value, *args, **kwargs)

    @wraps(FILTERS["indent"])
    def indent(s: str, width: int | str = 4, *args: Any, **kwargs: Any) -> Any:
        columns = len(width) if isinstance(width, str) else width
        sandbox.bound(len(s) + (s.count("\n") + 1) * columns)
        return FILTERS["indent"](s, width, *args, **kwargs)

    @wraps(FILTERS["join"])
    def join(eval_ctx: Any, value: Iterable[Any], d: str = "", attribute: Any = None) -> Any:
        (parts,) = _joined(sandbox, str(d), value)
        return FILTERS["join"](eval_ctx, parts, d, attribute)

    @wraps(FILTERS["replace"])
    def replace(eval_ctx: Any, s: str, old: str, new: str, count: int | None = None) -> Any:
        _check_replace(sandbox, str(s), str(old), str(new))
        return FILTERS["replace"](eval_ctx, s, old, new, count)

    @wraps(FILTERS["round"])
    def round_(value: float, precision: int = 0, method: Any = "common") -> Any:
        return FILTERS["round"](value, max(-300, min(precision, 300)), method)

    @wraps(FILTERS["sum"])
    def sum_(environment: Any, iterable: Any, attribute: Any = None, start: Any = 0) -> Any:
        if not isinstance(start, int | float):
            raise TemplateError("the filter 'sum' adds numbers only")
        return FILTERS["sum"](environment, sandbox.each(iterable), attribute, start)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """JSON as it is: jinja's own filter escapes it for HTML."""
        if not (ensure_ascii or indent or separators or sort_keys):
            return _to_json(value)
        options: Any = {
            "ensure_ascii": ensure_ascii,
            "indent": indent,
            "separators": separators,
            "sort_keys": sort_keys,
        }
        if indent is None:
            return json.dumps(value, **options)
        if isinstance(indent, int) and indent > MAX_INDENT:
            raise TemplateError(f"the filter 'tojson' indents by at most {MAX_INDENT}")
        # In pieces: deep values with indents are much longer than they weigh.
        made: str = sandbox.concat(sandbox.each(json.JSONEncoder(**options).iterencode(value)))
        return made

    return {
        "batch": batch,
        "slice": slices,
        "center": center,
        "format": format_,
        "indent": indent,
        "join": join,
        "replace": replace,
        "round": round_,
        "sum": sum_,
        "tojson": tojson,
    }


def check_widths(layout: str | bytes) -> None:
    """Refuse a layout of ``%`` or ``format`` that asks for widths of more than three digits.

    Raises:
        TemplateError: It does, or takes them from its arguments.
    """
    text = layout if isinstance(layout, str) else layout.decode("latin-1")
    if _WIDE.search(text) or _NESTED.search(text.replace("{{", "")) or "%*" in text:
        raise TemplateError("a layout may give widths of up to three digits only")


def checked_arguments(
    sandbox: Bounds, owner: Any, name: str, args: tuple[Any, ...]
) -> tuple[Any, ...]:
    """The arguments for the method ``name`` of ``owner``, if its result is in bounds.

    Raises:
        TemplateError: Templates may not call it.
        TemplateLimitError: It would make too much.
    """
    if isinstance(owner, str):
        match name, args:
            case "join", (parts,):
                return _joined(sandbox, owner, parts)
            case "replace", (old, new, *_):
                _check_replace(sandbox, owner, old, new)
                return args
            case (("center" | "ljust" | "rjust" | "zfill"), (width, *_)):
                sandbox.bound(width)
                return args
    allowed = next((_METHODS[kind] for kind in _METHODS if isinstance(owner, kind)), ())
    if name not in allowed:
        raise TemplateError(f"templates cannot call '{name}' of '{type(owner).__name__}'")
    return args


def _joined(sandbox: Bounds, between: str, parts: Iterable[Any]) -> tuple[Sequence[Any]]:
    """The parts to join, if what they make is in bounds."""
    listed = parts if isinstance(parts, list | tuple) else list(sandbox.each(parts))
    sandbox.bound(len(listed) * len(between) + sandbox.weight(listed))
    return (listed,)


def _check_replace(sandbox: Bounds, text: str, old: str, new: str) -> None:
    """Refuse a replacement that makes too much."""
    if len(new) > len(old):
        sandbox.bound(len(text) + text.count(old) * (len(new) - len(old)))
