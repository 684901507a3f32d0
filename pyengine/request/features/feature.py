"""The interface of a feature of requests, on the frontend's side.

::

    options, params ── ask ──► an Extension of Submit ──► the feature in Rust
    Update, Completion ◄── AnswerPart ◄── take, receive ── what comes back with a Delta

A feature is one file of this folder: its options with their checks, its extension, and the part of
the answer that it brings. :mod:`pyengine.request.features.registry` lists all of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pyengine.logprobs import Spelling
from pyengine.messages import Delta, Extension, Submit
from pyengine.queues import EngineInfo
from pyengine.request.adapters import AdapterNames
from pyengine.sampling import SamplingParams
from pyengine.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Options:
    """The base of the options that features declare; checked when they are made."""

    def __post_init__(self) -> None:
        """Check the options of this class, and pass on to the next.

        Raises:
            InvalidRequestError: An option is out of its range; names it.
        """


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that is being made.

    Attributes:
        params: Its sampling parameters, validated.
        prompt_length: Tokens of its prompt.
        tokenizer: The model's tokenizer.
        info: The engine's limits.
        adapters: The adapters that there are, by name.
    """

    params: SamplingParams
    prompt_length: int
    tokenizer: Tokenizer
    info: EngineInfo
    adapters: AdapterNames


class AnswerPart:
    """The part of one request's answer that a feature brings. Lives on the request's loop.

    Attributes:
        in_updates: Whether updates carry it, so that text is never passed on without them.
    """

    in_updates = False

    def take(self, delta: Delta) -> None:
        """Take in the tokens that came with ``delta``."""

    def receive(self, extra: Any) -> None:
        """Take in what the feature gives back, the ``extra`` of :class:`Feature`."""
        raise NotImplementedError

    def update(self, text: str) -> dict[str, Any]:
        """The fields of an Update with this ``text``."""
        return {}

    def completion(self) -> dict[str, Any]:
        """The fields of the Completion."""
        return {}

    def usage(self) -> dict[str, Any]:
        """The fields of the Usage."""
        return {}

    def continued(self) -> Extension | None:
        """The extension for a new engine, where it differs from the one that was sent."""
        return None


Taken = TypeVar("Taken", contravariant=True)
Body = TypeVar("Body", bound=Extension)


@dataclass(frozen=True)
class Feature(Generic[Taken]):
    """A feature: what it sends with a request, and what it makes of the answer.

    Attributes:
        extension: The body that it sends.
        ask: Makes the body of a request with these options; None where it asks for nothing. Raises
            InvalidRequestError where the engine cannot do it.
        answer: Makes the part of the answer of a request that was sent with this body; None for a
            feature that brings nothing back.
        extra: The body that it gives back; None where all comes with the tokens.
    """

    extension: type[Extension]
    ask: Callable[[Asked, Taken], Extension | None]
    answer: Callable[[Submit, Any, Spelling], AnswerPart] | None = None
    extra: type[Extension] | None = None
