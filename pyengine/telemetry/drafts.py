"""Drafted and accepted tokens, by proposer and position, from the planner's counts.

The planner names them ``drafted_<proposer>`` and ``accepted_<proposer>``, and the same with
``_<position>``; what is not named is 0.
"""

from collections.abc import Mapping

import msgspec

from pyengine._core import DRAFT_POSITIONS, PROPOSERS


class DraftPosition(msgspec.Struct, frozen=True):
    """One position in a row's draft.

    Attributes:
        place: 1 for the first draft token of the row; 16 stands for all from there on.
        reached: Draft tokens that stood there behind accepted ones only.
        accepted: How many of them were right.
    """

    place: int
    reached: int
    accepted: int


class Drafts(msgspec.Struct, frozen=True, kw_only=True):
    """The drafts of one proposer.

    Attributes:
        proposer: A name in :data:`pyengine._core.PROPOSERS`.
        drafted: Draft tokens that were sent and verified.
        accepted: How many of them were right, all before them being right.
        acceptance: The quotient; 0 where nothing was drafted.
        positions: The positions in which it had drafts.
    """

    proposer: str
    drafted: int
    accepted: int
    acceptance: float
    positions: list[DraftPosition]


def proposers(stats: Mapping[str, int]) -> list[Drafts]:
    """The drafts of each proposer, of those that drafted nothing too.

    ``stats`` are those of a report, or what came between two of them.
    """
    return [_drafts(name, stats) for name in PROPOSERS]


def _drafts(proposer: str, stats: Mapping[str, int]) -> Drafts:
    drafted = stats.get(f"drafted_{proposer}", 0)
    accepted = stats.get(f"accepted_{proposer}", 0)
    places = (
        DraftPosition(
            at + 1,
            stats.get(f"drafted_{proposer}_{at}", 0),
            stats.get(f"accepted_{proposer}_{at}", 0),
        )
        for at in range(DRAFT_POSITIONS)
    )
    return Drafts(
        proposer=proposer,
        drafted=drafted,
        accepted=accepted,
        acceptance=accepted / drafted if drafted else 0.0,
        positions=[place for place in places if place.reached],
    )
