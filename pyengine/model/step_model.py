"""How long a device's steps take, fitted from steps that were recorded."""

from bisect import bisect_left
from collections.abc import Sequence
from operator import mul
from pathlib import Path
from typing import Self, TypeVar

import msgspec
import numpy as np

from pyengine.errors import ConfigError
from pyengine.model.batch import StepBuffers

Line = TypeVar("Line")
_SHARES = 64  # of a group of steps; the spread has the mean of each
_GOLDEN = (5**0.5 - 1) / 2  # its multiples, without their whole part, are spread evenly


class StepModel(msgspec.Struct, frozen=True, kw_only=True):
    """A step's time as a sum over what it computes, and how far single steps are from it.

    Attributes:
        overlap: How many steps the device lets be planned while one runs.
        costs_us: Microseconds of every step; for each of its rows; for each of its tokens; and for
            each token of the context that one of its tokens sees.
        up_to_us: The largest sum of each group of steps, ascending; sums of a group differ by less
            than a factor of two.
        spread: For each group factors of the sum, of equally many steps each.
    """

    overlap: int
    costs_us: list[float]
    up_to_us: list[float]
    spread: list[list[float]]

    @classmethod
    def fitted(cls, recorded: Sequence[tuple[int, ...]], overlap: int) -> Self | None:
        """The model of steps as :class:`pyengine.messages.Recorded` has them.

        Least squares of the relative error; no part of the sum is negative. None: no step took
        time.
        """
        steps = np.array(recorded, np.int64).reshape(-1, 4)
        steps = steps[steps[:, 3] > 0]
        if len(steps) == 0:
            return None
        times = steps[:, 3] * 1e-3
        parts = np.concatenate([np.ones((len(steps), 1)), steps[:, :3]], axis=1)
        used = np.arange(parts.shape[1])
        while True:
            found = np.linalg.lstsq(parts[:, used] / times[:, None], np.ones(len(times)))[0]
            if (found >= 0).all():
                break
            used = np.delete(used, found.argmin())
        costs = np.zeros(parts.shape[1])
        costs[used] = found
        sums = parts @ costs
        octaves, factors = np.floor(np.log2(sums)), times / sums
        present = np.unique(octaves)
        groups = [np.sort(factors[octaves == octave]) for octave in present]
        shares = [np.array_split(group, min(_SHARES, len(group))) for group in groups]
        return cls(
            overlap=overlap,
            costs_us=costs.tolist(),
            up_to_us=(2 ** (present + 1)).tolist(),
            spread=[[round(float(share.mean()), 4) for share in each] for each in shares],
        )

    def duration_ns(self, buffers: StepBuffers) -> int:
        """Nanoseconds that the step in ``buffers`` takes. O(rows)."""
        rows = buffers.num_rows
        seen = int(np.diff(buffers.query_start[: rows + 1]) @ buffers.kv_length[:rows].astype(int))
        time_us: float = sum(map(mul, self.costs_us, (1, rows, buffers.num_tokens, seen)))
        group = min(bisect_left(self.up_to_us, time_us), len(self.spread) - 1)
        place = buffers.step_id * _GOLDEN % 1.0
        return round(1000 * time_us * self.spread[group][int(place * len(self.spread[group]))])


class Timed(msgspec.Struct):
    """The part of a recording's first line that the simulated device needs."""

    step_model: StepModel


def first_line(path: Path, kind: type[Line]) -> Line:
    """The first line of a recording.

    Raises:
        ConfigError: There is none.
    """
    try:
        with path.open("rb") as lines:
            return msgspec.json.decode(next(lines), type=kind)
    except (OSError, StopIteration, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path} is no recording of `pyengine record`: {error!r}") from None
