"""The time that preparing a request took, for its cost: its body, its prompt, its tokens."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pyengine._core import Stage, Timeline

_own: ContextVar[dict[str, float] | None] = ContextVar("preparation", default=None)


def begin_counting() -> None:
    """Count for the request that this task prepares, in the tasks that it starts too."""
    _own.set({})


def counted() -> dict[str, float]:
    """The microseconds that were counted by stage. They are given once: the next has none."""
    own = _own.get()
    found = dict(own or {})
    if own:
        own.clear()
    return found


@contextmanager
def preparing(timeline: Timeline, stage: Stage) -> Iterator[None]:
    """Record the block as a span of ``stage``, and count it. On the loop of the timeline."""
    start = timeline.begin()
    try:
        yield
    finally:
        end, own = timeline.span(stage, start), _own.get()
        if own is not None:
            own[stage.label] = own.get(stage.label, 0.0) + (end - start) * 1e-3
