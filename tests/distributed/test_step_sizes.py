"""Ranks exchange numbers of one size, whatever graphs each of them could keep."""

from typing import Any

import pytest

from tests.table_runner import run, table_runner


def sizes(*, graphs: int, fails: bool = False, one_size: bool = True) -> list[Any]:
    """What a rank's model was called for, in steps that decode, some with drafts."""
    runner, model = table_runner(graphs=graphs)
    assert runner.graphs is not None
    runner.graphs._capturer.fails = fails  # type: ignore[attr-defined]
    runner._one_size = one_size
    for rows, each in [(3, 1), (5, 1), (3, 2), (7, 1)] * 8:
        run(runner, rows, each)
    return [entry for entry in model.log if entry[0] in ("forward", "logits")]


@pytest.mark.parametrize("other", [{"graphs": 1}, {"graphs": 1 << 30, "fails": True}])
def test_steps_are_padded_alike_with_graphs_and_without(other: dict[str, Any]) -> None:
    keeps = sizes(graphs=1 << 30)
    assert sizes(**other) == keeps
    assert ("forward", 4) in keeps
    assert ("forward", 3) not in keeps
    # A single rank has nothing to agree on, and would choose otherwise.
    assert sizes(graphs=1 << 30, one_size=False) != sizes(**other, one_size=False)
