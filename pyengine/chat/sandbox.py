"""The sandbox of chat templates: jinja's own, with bounds of time and memory.

A template is a program that comes with a model and reads what clients send. Jinja's sandbox keeps
it from the interpreter, but not from looping for ever or from making gigabytes. Here

- loops, calls and operators look at the clock,
- each value that an operator, a call or a filter makes is *weighed*: a character weighs 1, an entry
  of a container :data:`ENTRY`; a value that several containers share counts once for each,
- what could make much out of little (``*``, widths, ``replace``, ``join`` and so on) is refused
  before it is made, and a method or filter that is not known to be harmless is refused.

So no single operation of a template works on more than ``max_characters``, and between two of them
it is stopped in time. :mod:`pyengine.chat.sandbox_functions` has the filters and methods.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import Any, TypeVar, cast

from jinja2 import nodes
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from pyengine.chat import sandbox_functions as functions
from pyengine.errors import InvalidRequestError

# What an entry of a list or a dict weighs: the bytes of a pointer.
ENTRY = 8
# All that a template makes may weigh so many times what one value may.
IN_ALL = 128
# Texts below this are not counted among all that a template makes: their number is bounded by time.
LIGHT = 4096
# Numbers of more bits take long to compute with; no prompt has any.
MAX_BITS = 4096

_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
_CONTAINERS = (list, tuple, dict, set, frozenset, *_VIEWS)
_OF_DICTS = frozenset(dir(dict))
_MISSING = object()

T = TypeVar("T")


class TemplateLimitError(InvalidRequestError):
    """A chat template made too much."""

    code = "template_limit_exceeded"

    def __init__(self, what: str) -> None:
        super().__init__(f"the model's chat template {what}", param="messages")


class TemplateTimeoutError(TemplateLimitError):
    """A chat template ran for too long."""


class _Namespace(Namespace):
    """Jinja's, but written as its name only: what it holds may be large."""

    def __repr__(self) -> str:
        return "<Namespace>"


class _Run(threading.local):
    """The rendering that goes on in a thread."""

    def __init__(self) -> None:
        self.deadline = self.seconds = 0.0
        self.left = 0
        # Containers that were weighed, by id, and themselves, so that an id is not used again.
        self.weights: dict[int, tuple[Any, int]] = {}


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """An environment whose templates end in time and make no more than they may. Any thread.

    Attributes:
        max_characters: What one value may weigh, the rendered text too.
    """

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, max_characters: int, **options: Any) -> None:
        """Take the bound of each value, and jinja's own options."""
        super().__init__(**options)
        self.max_characters = max_characters
        self._run = _Run()
        self.filters = functions.filters(self)
        self.filters |= {"_each": self.each, "_weighed": self.weighed}
        self.globals["namespace"] = _Namespace
        del self.globals["lipsum"]
        self.concat = self._concat  # type: ignore[method-assign]

    def run(self, work: Callable[[], T], seconds: float) -> T:
        """What ``work`` gives, which renders or compiles a template, within ``seconds``.

        Raises:
            TemplateLimitError: It took too long, or made too much.
        """
        run = self._run
        run.deadline, run.seconds = monotonic() + seconds, seconds
        run.left = IN_ALL * self.max_characters
        try:
            return work()
        finally:
            run.weights.clear()

    def tick(self) -> None:
        """Look at the clock.

        Raises:
            TemplateTimeoutError: The time is up.
        """
        if monotonic() > self._run.deadline:
            raise TemplateTimeoutError(f"took more than {self._run.seconds:g} seconds")

    def each(self, values: Iterable[Any]) -> Iterator[Any]:
        """``values``, with a look at the clock for each."""
        deadline = self._run.deadline
        for value in values:
            if monotonic() > deadline:
                self.tick()
            yield value

    def weighed(self, value: Any) -> Any:
        """``value``, if it is not too large."""
        kind = type(value)
        if (kind is str and len(value) < LIGHT) or value is None or kind is bool:
            return value
        weight = len(value) if kind is str else self.weight(value)
        run = self._run
        run.left -= weight
        if weight > self.max_characters or run.left < 0:
            self.refuse_size()
        return value

    def refuse_size(self) -> None:
        """Raise the error for what is too large."""
        raise TemplateLimitError(f"makes more than {self.max_characters} characters")

    def bound(self, weight: int) -> None:
        """Refuse to make what would weigh so much."""
        if weight > self.max_characters:
            self.refuse_size()

    def weight(self, value: Any) -> int:
        """What a value weighs: what it would take to write or compare all of it."""
        if isinstance(value, str | bytes):
            return len(value)
        if not isinstance(value, _CONTAINERS):
            return ENTRY
        weights = self._run.weights
        if (known := weights.get(id(value))) is not None:
            return known[1]
        self.tick()
        weight = ENTRY
        if isinstance(value, dict):
            weight += sum(map(self.weight, value))
        entries: Iterable[Any] = value.values() if isinstance(value, dict) else value  # type: ignore[assignment]
        for entry in entries:
            weight += ENTRY + self.weight(entry)
        weights[id(value)] = (value, weight)
        return weight

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call what a template calls; its result is weighed."""
        __self.tick()
        if type(__obj) is Macro:  # what most calls are; the same as below, without detours
            kwargs.pop("_loop_vars", None)
            kwargs.pop("_block_vars", None)
            return __self.weighed(__obj(__context.eval_ctx, *args, **kwargs))
        owner = getattr(__obj, "__self__", _MISSING)
        if isinstance(owner, functions.BUILTINS):
            args = functions.checked_arguments(__self, owner, __obj.__name__, args)
        return __self.weighed(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute ``left operator right`` if the result is not too large."""
        if operator != "+":
            _check_operands(self, operator, left, right)
            return self.weighed(self.binop_table[operator](left, right))
        made = left + right
        if type(made) is not list:
            return self.weighed(made)
        run = self._run  # the weight of both, so that lists that grow are not weighed again
        weight = self.weight(left) + self.weight(right)
        run.weights[id(made)] = (made, weight)
        run.left -= len(made) * ENTRY
        self.bound(weight)
        return made

    def getattr(self, obj: Any, attribute: str) -> Any:
        """As jinja's, but without the way round where a dict has the key and no such method."""
        if type(obj) is dict and attribute in obj and attribute not in _OF_DICTS:
            return obj[attribute]
        return super().getattr(obj, attribute)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """``str.format`` in the sandbox, without widths of more than three digits."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            functions.check_widths(value.__self__)
        return wrapped

    def _concat(self, parts: Iterable[str]) -> str:
        """The pieces of a template's output, or of a block in it, as one."""
        pieces = parts if type(parts) is list else list(parts)
        size = sum(map(len, pieces))
        self.bound(size)
        if size >= LIGHT:
            self._run.left -= size
        return "".join(pieces)


def _check_operands(sandbox: TemplateSandbox, name: str, left: Any, right: Any) -> None:
    """Refuse ``*``, ``**`` and ``%`` of what would become too large."""
    if name == "%":
        if isinstance(left, str | bytes):
            functions.check_widths(left)
        return
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * abs(right) if name == "**" else left.bit_length()
        if bits + right.bit_length() > MAX_BITS:
            raise TemplateLimitError(f"computes with numbers of more than {MAX_BITS} bits")
        return
    for value, times in ((left, right), (right, left)):
        if isinstance(times, int) and not isinstance(value, int | float):
            sandbox.bound(sandbox.weight(value) * max(times, 0))


class Metering(NodeTransformer):
    """Puts the looks at the clock, and at sizes, into a template's syntax tree."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802, D102
        self.generic_visit(node)
        node.iter = _filtered("_each", cast("nodes.Expr", node.iter))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802, D102
        self.generic_visit(node)
        operands: list[nodes.Expr] = [_filtered("_weighed", each) for each in node.nodes]
        return _filtered("_weighed", nodes.Concat(operands, lineno=node.lineno))

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802, D102
        self.generic_visit(node)
        return _filtered("_weighed", node) if node.items else node

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802, D102
        self.generic_visit(node)
        return _filtered("_weighed", node) if node.ctx == "load" and node.items else node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802, D102
        self.generic_visit(node)
        return _filtered("_weighed", node) if node.items else node


def _filtered(name: str, node: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)
