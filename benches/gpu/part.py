"""A part of the bench: a question, a share of the time, and rows of figures as they come."""

import time
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import torch

from benches.gpu.floors import Ceilings
from benches.gpu.timing import Stopwatch

# Of a part's share, what is kept for closing what it opened.
CLOSING_S = 4.0


@dataclass
class Bench:
    """The inputs of a part.

    Attributes:
        device: Where everything runs.
        tiny: Whether only to show that it works: small shapes, few repetitions.
        model: The named shape, or the folder of one, that engines are built with.
        ceilings: The measured limits of the device; None before they are measured.
        attention: The attention backend of engines on a GPU.
        deadline: ``time.monotonic()`` by which the part is to be done.
        say: Prints what is under way.
        about: Adds facts to those of the machine: what the engine chose there.
        clock: Times work on the device.
    """

    device: torch.device
    tiny: bool
    model: str
    deadline: float
    ceilings: Ceilings | None = None
    attention: str = "auto"
    say: Callable[[str], None] = lambda text: None
    about: Callable[[dict[str, str]], None] = lambda facts: None
    clock: Stopwatch = field(init=False)

    def __post_init__(self) -> None:
        self.clock = Stopwatch(self.device, 0.002 if self.tiny else 0.05)

    @property
    def left_s(self) -> float:
        """Seconds that the part still has."""
        return self.deadline - time.monotonic()

    @property
    def cuda(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.type == "cuda"

    def floor(self, seconds: Callable[[Ceilings], float]) -> float | None:
        """A floor where ceilings are known."""
        return None if self.ceilings is None else seconds(self.ceilings)


@dataclass(frozen=True)
class Part:
    """One file's part.

    Attributes:
        name: By which ``--only`` asks for it.
        question: What it answers.
        share_s: Seconds that it may take on one H200; what others left of theirs comes on top.
        row: Dataclass of its rows. Seconds end in ``_s``, bytes in ``_bytes``; ``note`` says why
            figures are missing.
        run: Measures, yielding each row as it is known.
    """

    name: str
    question: str
    share_s: float
    row: type[Any]
    run: Callable[[Bench], Generator[Any]]

    @property
    def columns(self) -> tuple[str, ...]:
        """The fields of its rows."""
        return tuple(f.name for f in fields(self.row))


@dataclass
class Result:
    """The outcome of a part.

    Attributes:
        question: Of the part.
        status: ``complete``, ``cut`` (the time was over), ``failed`` or ``running``.
        why: Of ``cut`` and ``failed``.
        share_s: Seconds that it had.
        seconds: And took.
        rows: What was measured, also where it was cut or failed.
    """

    question: str
    share_s: float
    status: str = "running"
    why: str | None = None
    seconds: float = 0.0
    rows: list[dict[str, Any]] = field(default_factory=list)


def run_part(
    part: Part, bench: Bench, on_row: Callable[[dict[str, Any]], None]
) -> tuple[str, str | None]:
    """Run ``part`` here until it is complete or its time is over; returns status and why.

    The time is looked at between rows; see ``run.py`` for what bounds a row.
    """
    rows = part.run(bench)
    count = 0
    try:
        for row in rows:
            on_row(asdict(row))
            count += 1
            if bench.left_s < CLOSING_S:
                # It may have been the last one.
                if next(rows, None) is None:
                    return "complete", None
                return "cut", f"its time was over after {count} rows"
    except Exception as error:  # noqa: BLE001 - what fails here must not keep the others from running
        return "failed", f"{type(error).__name__}: {error}"
    finally:
        rows.close()
    return "complete", None
