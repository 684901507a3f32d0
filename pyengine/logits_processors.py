"""Code of the operator that changes logits before the engine's own rules.

::

    logits ─► processors that a request asks for ─► penalties, masks ─► sampling rules ─► token

A processor is an object with ``process``, or a function that takes the same. It is declared for an
engine, as ``"module:name"`` or, where the engine runs on a thread of the caller's process, as the
object itself. A request reaches it by its name, with arguments::

    class Forbid:
        def process(self, logits, rows):
            for row in rows:
                logits[row.index, row.arguments["tokens"]] = -math.inf

    async with AsyncEngine(logits_processors=[Forbid()]) as engine:
        await engine.generate("Hello", logits_processors={"Forbid": {"tokens": [5, 7]}})

What a processor makes of a row must follow from the row alone, or the same seed gives other tokens
in other company, after a preemption or after the engine's restart.

Its calls are on the scheduler's thread, between two kernels: the time they take is the step's.
Imports no torch.
"""

import importlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from pyengine._core import Planner
from pyengine.errors import ConfigError

Key = tuple[int, int]


@dataclass(slots=True)
class LogitsRow:
    """A row of logits, and whose it is.

    Attributes:
        index: Which of the logits that come with it.
        request: Names the request as long as it runs, preemptions included; another engine that
            goes on with it after a restart may see the same name.
        prompt_token_ids: Its prompt.
        output_token_ids: The tokens so far, those from before a restart too. Both are the engine's
            own: not to be changed.
        arguments: What the request gives the processor, as JSON has it.
    """

    index: int
    request: str
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    arguments: dict[str, Any]


class LogitsProcessor(Protocol):
    """Changes logits in place."""

    def process(self, logits: Any, rows: Sequence[LogitsRow]) -> None:
        """Change the ``rows`` of ``logits`` that are given, and no others.

        Whatever it raises ends the request that it raises it for, and no other: where it raises for
        several rows, it is called with each of them alone to find that request, and then, on logits
        as they were, with the others.

        Args:
            logits: [rows of the step, vocabulary], the model's own. On the CPU numpy's float32
                array (:func:`torch.from_numpy` takes it without a copy); with ``dtype`` of bfloat16
                a float32 copy that is rounded back. On torch devices a tensor in the model's type,
                to work on with the current stream; what is queued is not waited for.
            rows: The rows of requests that ask for this processor; each has its index.
        """


Call = Callable[[Any, Sequence[LogitsRow]], None]


def load_processors(
    paths: Sequence[str], objects: Sequence[LogitsProcessor | Call] = ()
) -> dict[str, Call]:
    """The processors at ``paths``, ``module:name`` each, and ``objects``, by the names that
    requests call them by: their own ``name``, or else that of the class or function.

    Raises:
        ConfigError: One cannot be imported or made, is none, or has the name of another.
    """
    found: dict[str, Call] = {}
    for given in (*paths, *objects):
        made = _made(given) if isinstance(given, str) else given
        name = getattr(made, "name", None) or getattr(made, "__name__", type(made).__name__)
        call = getattr(made, "process", made)
        if not callable(call) or not isinstance(name, str):
            raise _refused(f"{given!r} has no method 'process' and is no function")
        if name in found:
            raise _refused(f"two are called {name!r}; give one an attribute 'name'")
        found[name] = call
    return found


def _made(path: str) -> Any:
    module, _, name = path.partition(":")
    try:
        made = getattr(importlib.import_module(module), name)
        return made() if isinstance(made, type) else made
    except Exception as error:  # a stranger's code
        raise _refused(
            f"{path!r} cannot be made, which should be 'module:name': "
            f"{type(error).__name__}: {error}"
        ) from error


def _refused(why: str) -> ConfigError:
    return ConfigError(f"'logits_processors': {why}", param="logits_processors")


@dataclass(slots=True)
class _Request:
    prompt: "array[int]"
    output: "array[int]"
    arguments: dict[str, dict[str, Any]]


@dataclass(slots=True)
class StepProcessing:
    """The work of the processors on one step's logits.

    Attributes:
        rows: By processor, the rows of the step that ask for it.
        failed: Logits of rows for which one raised, ascending, and why.
    """

    calls: Mapping[str, Call]
    rows: dict[str, list[LogitsRow]]
    failed: list[tuple[int, str]] = field(default_factory=list)

    def process(
        self, logits: Any, first: int, count: int, again: Callable[[], None] | None = None
    ) -> None:
        """Change the first ``count`` rows of ``logits``, which are logits ``first`` to
        ``first + count`` of the step.

        Args:
            logits: As processors take them.
            first: Which of the step's logits is their first.
            count: How many.
            again: Makes the logits as they were.
        """
        inside = {
            name: [row for row in rows if first <= row.index < first + count]
            for name, rows in self.rows.items()
        }
        while True:
            broken = self._process(logits, first, inside)
            if not broken:
                break
            self.failed += broken
            gone = {index for index, _ in broken}
            inside = {
                name: [row for row in rows if row.index not in gone]
                for name, rows in inside.items()
            }
            assert again is not None
            again()
        self.failed.sort()

    def _process(
        self, logits: Any, first: int, inside: Mapping[str, list[LogitsRow]]
    ) -> list[tuple[int, str]]:
        """Calls all; the rows that one raised for, and why."""
        for name, rows in inside.items():
            if not rows:
                continue
            try:
                self._call(name, logits, first, rows)
            except Exception as error:  # noqa: BLE001 - the operator's code
                if len(rows) == 1:
                    return [(rows[0].index, _why(name, error))]
                return self._alone(name, logits, first, rows)
        return []

    def _alone(
        self, name: str, logits: Any, first: int, rows: Sequence[LogitsRow]
    ) -> list[tuple[int, str]]:
        """The rows for which the processor raises when it has them alone; if there is none, all."""
        broken, last = [], ""
        for row in rows:
            try:
                self._call(name, logits, first, [row])
            except Exception as error:  # noqa: BLE001 - as above
                last = _why(name, error)
                broken.append((row.index, last))
        together = f"the logits processor {name!r} fails on a batch, though on no row of it alone"
        return broken or [(row.index, together) for row in rows]

    def _call(self, name: str, logits: Any, first: int, rows: Sequence[LogitsRow]) -> None:
        if first:
            rows = [
                LogitsRow(
                    row.index - first,
                    row.request,
                    row.prompt_token_ids,
                    row.output_token_ids,
                    row.arguments,
                )
                for row in rows
            ]
        self.calls[name](logits, rows)


def _why(name: str, error: Exception) -> str:
    text = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
    return f"the logits processor {name!r} raised {text}"


class LogitsProcessors:
    """The processors of an engine, and the tokens of the requests that ask for them.

    Belongs to the scheduler's thread.

    Attributes:
        names: What requests call them by.
    """

    def __init__(self, calls: Mapping[str, Call]) -> None:
        self.names = tuple(calls)
        self._calls = calls
        self._requests: dict[Key, _Request] = {}
        self._arguments = msgspec.json.Decoder(dict[str, dict[str, Any]])

    def take_step(self, planner: Planner) -> StepProcessing:
        """The work on the step that was planned last; every step before is committed."""
        told, left = planner.processed_rows()
        for key in left:
            self._requests.pop(key, None)
        rows: dict[str, list[LogitsRow]] = {}
        for key, index, prompt_length, asked, new in told:
            tokens = array("I", new)
            request = self._requests.get(key)
            if request is None or asked is not None:
                arguments = self._arguments.decode(asked or b"{}")
                prompt, tokens = tokens[:prompt_length], tokens[prompt_length:]
                request = self._requests[key] = _Request(prompt, array("I"), arguments)
            request.output.extend(tokens)
            for name, arguments_of in request.arguments.items():
                row = LogitsRow(
                    index, f"{key[0]}-{key[1]}", request.prompt, request.output, arguments_of
                )
                rows.setdefault(name, []).append(row)
        # In the order in which they are declared, whatever a request's is.
        return StepProcessing(
            self._calls, {name: rows[name] for name in self.names if name in rows}
        )
