"""What does it cost to verify drafts: a step with 1 + k tokens a row beside one with 1?

Whether a draft is right does not change the time of the step that verifies it, so that no text is
needed. ``worth`` is how many of the k drafts must be right for the step to pay: its time over that
of a plain step, less the token that comes anyway.
"""

from collections.abc import Generator
from dataclasses import dataclass

from benches.gpu.engines import Model, engine_config
from benches.gpu.part import Bench, Part
from benches.gpu.steps import step_seconds
from pyengine.model.devices import load_runner
from pyengine.model.spec import describe

ROWS = (1, 16, 64)
DRAFTS = range(9)
CONTEXT = 1024


@dataclass(frozen=True)
class Row:
    """One batch and number of drafts.

    Attributes:
        rows: Sequences in the step.
        drafts: Draft tokens of each.
        step_s: Of the device.
        over_plain: Over the step without drafts.
        worth: Drafts of each that must be right for it to pay.
        floor_s: Of the step.
        over_floor: Of the step.
        note: Why figures are missing.
    """

    rows: int
    drafts: int
    step_s: float | None = None
    over_plain: float | None = None
    worth: float | None = None
    floor_s: float | None = None
    over_floor: float | None = None
    note: str | None = None


def run(bench: Bench) -> Generator[Row]:
    """Measures each batch, plain steps first."""
    batches, counts, context = (ROWS, DRAFTS, CONTEXT) if not bench.tiny else ((1, 2), (0, 2), 32)
    config = engine_config(
        bench, max_sequences=batches[-1], max_context=context + 32, max_draft=counts[-1]
    )
    model = Model.of(describe(config))
    runner = load_runner(config)
    try:
        for rows in batches:
            plain = 0.0
            for drafts in counts:
                step = step_seconds(
                    runner, rows, 1 + drafts, context, *((3, 1) if bench.tiny else (24, 24))
                )
                plain = plain or step
                floor = bench.floor(lambda c: model.step_s(c, rows, 1 + drafts, context))  # noqa: B023
                yield Row(
                    rows,
                    drafts,
                    step_s=step,
                    over_plain=step / plain,
                    worth=step / plain - 1,
                    floor_s=floor,
                    over_floor=None if floor is None else step / floor,
                )
    finally:
        runner.close()


PART = Part("speculation", "What does it cost to verify drafts?", 25.0, Row, run)
