"""Which kernel multiplies is measured, once for each shape and number of rows."""

from collections.abc import Callable

import pytest
import torch

from pyengine.model.torch.matmul import MAX_GEMV_ROWS, Matmul, library


class Contest:
    """A GEMV that is right, and a timer that says it is faster up to so many rows."""

    def __init__(self, faster_up_to: int) -> None:
        self.faster_up_to = faster_up_to
        self.rows: list[int] = []
        self.timed = 0

    def gemv(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> None:
        self.rows.append(len(x))
        library(x, weight, out, bias)

    def time(self, work: Callable[[], None]) -> float:
        before = len(self.rows)
        work()
        self.timed += 1
        ours = len(self.rows) > before
        return float(self.rows[-1] > self.faster_up_to) * 2 if ours else 1.0


@pytest.mark.parametrize("bias", [None, torch.arange(6.0)])
@pytest.mark.parametrize("faster_up_to", [0, 3, 8])
def test_the_faster_one_multiplies(faster_up_to: int, bias: torch.Tensor | None) -> None:
    contest = Contest(faster_up_to)
    matmul = Matmul(contest.gemv, lambda: contest.time)
    weight = torch.randn(6, 10)
    matmul.measure([weight])
    contest.rows.clear()
    for rows in range(1, 12):
        x, out = torch.randn(rows, 10), torch.empty(rows, 6)
        matmul(x, weight, out, bias)
        expected = x @ weight.t() + (0 if bias is None else bias)
        torch.testing.assert_close(out, expected)
    assert contest.rows == list(range(1, faster_up_to + 1))


def test_a_shape_is_measured_once_and_an_unknown_one_is_the_librarys() -> None:
    contest = Contest(8)
    matmul = Matmul(contest.gemv, lambda: contest.time)
    matmul.measure([torch.randn(6, 10)])
    assert contest.timed == 2 * MAX_GEMV_ROWS
    matmul.measure([torch.randn(6, 10)])
    assert contest.timed == 2 * MAX_GEMV_ROWS
    matmul.measure([torch.randn(10, 6)])
    assert contest.timed == 4 * MAX_GEMV_ROWS
    contest.rows.clear()
    matmul(torch.randn(1, 3), torch.randn(4, 3), torch.empty(1, 4))
    assert not contest.rows


def test_without_a_contender_there_is_no_contest() -> None:
    matmul, out = Matmul(), torch.empty(2, 3)
    matmul.measure([torch.ones(3, 4)])
    matmul(torch.ones(2, 4), torch.ones(3, 4), out)
    assert out.eq(4).all()
