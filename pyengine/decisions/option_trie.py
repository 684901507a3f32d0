"""Options as sequences of tokens, and the places where they part.

::

    re fund          (root) ── re ── fund                 places: the root, and behind "re"
    re pair             │       └─── pair                 p(refund) = p(re) * p(fund)
    other               └─── other

A place has the probabilities of its children alone, which sum to 1; an option has the product of
those on its way. That is the probability with which an answer that a grammar holds to the options
is that option. Where an option ends within another, its way goes on with the end of the answer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """A place where options part.

    Attributes:
        path: The tokens that lead to it.
        children: The tokens that may follow.
    """

    path: tuple[int, ...]
    children: tuple[int, ...]


class OptionTrie:
    """The trie of some options. O(tokens of all options).

    Attributes:
        places: Where options part.
    """

    def __init__(self, options: Sequence[Sequence[int]], end: int) -> None:
        """Take the tokens of each option, all different, and the token that ends an answer."""
        self._ways = [(*option, end) for option in options]
        children: dict[tuple[int, ...], dict[int, None]] = {}
        for way in self._ways:
            for at, token in enumerate(way):
                children.setdefault(way[:at], {})[token] = None
        self.places = [
            Place(path, tuple(tokens)) for path, tokens in children.items() if len(tokens) > 1
        ]

    def probabilities(self, logprobs: Sequence[Sequence[float]]) -> list[float]:
        """The probability of each option.

        Args:
            logprobs: The log-probabilities of the children of each place.
        """
        shares = {
            (place.path, token): share
            for place, found in zip(self.places, logprobs, strict=True)
            for token, share in zip(place.children, _softmax(found), strict=True)
        }
        return [
            math.prod(shares.get((way[:at], token), 1.0) for at, token in enumerate(way))
            for way in self._ways
        ]


def _softmax(logprobs: Sequence[float]) -> list[float]:
    most = max(logprobs)
    weights = [math.exp(each - most) for each in logprobs]
    total = math.fsum(weights)
    return [weight / total for weight in weights]
