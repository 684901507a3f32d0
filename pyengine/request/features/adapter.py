"""Adapters: the tokens of the model with a low-rank adapter, which a request asks for by name."""

from dataclasses import dataclass
from typing import ClassVar, TypedDict

from pyengine.messages import Extension
from pyengine.request.arguments import wrong_type
from pyengine.request.features.feature import Asked, Feature, Options


class AdapterExtension(Extension):
    """Asks for the tokens of the model with an adapter.

    Attributes:
        digest: The SHA-256 of the adapter, 32 bytes.
        folder: The folder that it is loaded from, where it is not loaded already.
    """

    TAG: ClassVar[str] = "adapter"

    digest: bytes
    folder: str


class AdapterKeywords(TypedDict, total=False):
    """The keyword for adapters; see :class:`AdapterOptions`."""

    adapter: str | None


@dataclass(frozen=True, kw_only=True)
class AdapterOptions(Options):
    """The option for adapters.

    Attributes:
        adapter: The name of a loaded adapter; None is the model alone. An adapter's prefixes are
            cached apart from all others.
    """

    adapter: str | None = None

    def __post_init__(self) -> None:
        if self.adapter is not None and not isinstance(self.adapter, str):
            raise wrong_type("adapter", "the name of a loaded adapter", self.adapter)
        super().__post_init__()


def _ask(asked: Asked, options: AdapterOptions) -> AdapterExtension | None:
    if options.adapter is None:
        return None
    adapter = asked.adapters.find(options.adapter)
    return AdapterExtension(bytes.fromhex(adapter.digest), adapter.folder)


FEATURE = Feature(AdapterExtension, _ask)
