"""Python's declarations of messages are those of Rust, field by field."""

import inspect
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

from pyengine import AsyncEngine, SamplingParams
from pyengine._core import declared_messages
from pyengine.errors import RequestFailedError
from pyengine.messages import (
    Delta,
    Report,
    ReportRequest,
    RequestKey,
    Submit,
    decode,
    encode_abort,
    encode_report,
    encode_report_request,
)
from pyengine.request.features.registry import FEATURES
from pyengine.telemetry import HistogramTotal, StageTotal, Totals


def test_message_that_python_reads_comes_back_unchanged() -> None:
    stages = [StageTotal("scheduler", "launch", 3, 1, 2)]
    totals = Totals(9, 8, 3, 7, [0, 3], 12, 0, 35.5, stages)
    times = HistogramTotal([10, 20], [1, 0, 2], 70)
    report = Report(7, {"free": 3}, {"duration_ns": times}, totals)
    assert decode(encode_report(report)) == report
    request = ReportRequest(1, 7)
    assert decode(encode_report_request(request)) == request
    delta = Delta(7, "é", (1, 70_000), "stop", None, 2, 3, 0, 2, 9)
    assert decode(msgspec.msgpack.encode(("deltas", [delta]))) == [delta]


@pytest.mark.parametrize(
    "message", [b"", b"\x92", encode_abort(RequestKey(0, 1)), msgspec.msgpack.encode(("deltas", 3))]
)
def test_message_that_python_does_not_read_is_refused(message: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(message)


DECLARED = declared_messages()
EXTENSIONS = {feature.extension.TAG: feature.extension for feature in FEATURES}
EXTRAS = {each.extra.TAG: each.extra for each in FEATURES if each.extra is not None}
STRUCTS: list[type[msgspec.Struct]] = [
    RequestKey, Submit, Delta, *EXTENSIONS.values(), *EXTRAS.values()
]  # fmt: skip


def _spelled(kind: Any) -> str:
    """A type as ``declared_messages`` spells it: sequences of one type are lists."""
    if kind is None or kind is types.NoneType:
        return "None"
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is None:
        return str(kind.__name__)
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if origin in (types.UnionType, Union):
        return " | ".join(map(_spelled, arguments))
    if origin is list or arguments[1:] == (Ellipsis,):
        return f"list[{_spelled(arguments[0])}]"
    return f"{origin.__name__}[{', '.join(map(_spelled, arguments))}]"


@pytest.mark.parametrize("struct", STRUCTS)
def test_a_struct_has_the_fields_that_rust_declares(struct: type[msgspec.Struct]) -> None:
    hints = get_type_hints(struct)
    fields = [(name, _spelled(hints[name])) for name in struct.__struct_fields__]
    assert fields == [tuple(field) for field in DECLARED["structs"][struct.__name__]]


def test_every_struct_that_rust_declares_is_there() -> None:
    assert {struct.__name__ for struct in STRUCTS} == set(DECLARED["structs"])
    named = {tag: extension.__name__ for tag, extension in EXTENSIONS.items()}
    assert named == DECLARED["extensions"]
    named = {tag: extra.__name__ for tag, extra in EXTRAS.items()}
    assert named == DECLARED["extras"]


def test_every_struct_of_messages_is_held_to_rust() -> None:
    import pyengine.messages as module

    of_python = {
        "Extension", "Report", "ReportRequest", "ResetRequest", "ResetDone", "LoadAdapter",
        "AdapterLoaded", "Recorded", "RecordedRequest",
    }  # fmt: skip
    found = inspect.getmembers(module, lambda each: inspect.isclass(each))
    own = {name for name, each in found if each.__module__ == module.__name__}
    assert own - of_python == {"RequestKey", "Submit", "Delta"}


def test_defaults_are_those_of_rust() -> None:
    _, values = msgspec.msgpack.decode(DECLARED["default_submit"])
    for field, value in zip(msgspec.structs.fields(Submit), values, strict=True):
        factory = field.default_factory
        default = field.default if factory is msgspec.NODEFAULT else factory()
        if default is not msgspec.NODEFAULT:
            assert msgspec.to_builtins(default, builtin_types=(bytes,)) == (
                tuple(value) if isinstance(default, tuple) else value
            ), field.name


async def test_an_unknown_extension_ends_its_request_by_name() -> None:
    async with AsyncEngine(device="simulated") as engine:
        assert engine.connection.frontend is not None
        known = engine.generate([5, 6], SamplingParams(max_tokens=2))
        submit = msgspec.structs.replace(
            known._actor.submit,
            key=engine.connection.frontend.next_key(),
            extensions={"colour": b"\x90"},
        )
        with pytest.raises(RequestFailedError, match="there is no extension 'colour'"):
            await engine.connection.frontend.submit(submit).completion()
        assert (await known).usage.completion_tokens == 2
