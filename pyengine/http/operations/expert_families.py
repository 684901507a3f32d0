"""The metrics of mixtures of experts.

Two figures a layer, and one for every expert of every layer only where a scrape asks for it: a
model of 48 layers with 128 experts each has 6,144 of those.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec

from pyengine.http.query import read_query
from pyengine.telemetry.experts import ExpertLoad


class Family(NamedTuple):
    """A metric without prefix and unit suffix, its samples by the values of ``labels``."""

    kind: Literal["gauge", "counter"]
    name: str
    text: str
    labels: list[str]
    samples: list[tuple[tuple[str, ...], float]]


class MetricsQuery(msgspec.Struct):
    """How metrics are told; what scrapers add of their own is left alone.

    Attributes:
        experts: 1 counts every expert of a mixture too.
    """

    experts: bool = False


def asks_for_each_expert(query: str) -> bool:
    """Whether a scrape with this query wants ``expert_tokens``.

    Raises:
        InvalidRequestError: ``experts`` is neither 1 nor 0.
    """
    return read_query(query, MetricsQuery).experts


def expert_families(
    layers: Sequence[ExpertLoad], ranks: int, *, each_expert: bool
) -> Iterator[Family]:
    """The metrics of ``layers``; none of a model without experts.

    Args:
        layers: Their load.
        ranks: Ranks that have whole experts; 1 where each expert is shared by all.
        each_expert: Count the tokens of every expert.
    """
    if not layers:
        return
    yield Family(
        "gauge",
        "expert_imbalance_ratio",
        "Tokens of the busiest expert of a layer over the mean of its experts; 1 is even.",
        ["layer"],
        [((str(load.layer),), load.imbalance) for load in layers],
    )
    if ranks > 1:
        yield Family(
            "gauge",
            "expert_rank_imbalance_ratio",
            "Tokens for the experts of the busiest rank over the mean of the ranks; 1 is even.",
            ["layer"],
            [((str(load.layer),), load.by_rank(ranks).imbalance) for load in layers],
        )
    if each_expert:
        yield Family(
            "counter",
            "expert_tokens",
            "Tokens that were sent to each expert.",
            ["layer", "expert"],
            [
                ((str(load.layer), str(expert)), tokens)
                for load in layers
                for expert, tokens in enumerate(load.tokens)
            ],
        )
