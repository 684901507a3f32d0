"""The adapters that requests may ask for by name. An adapter is its digest; names are aliases."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pyengine.errors import ModelNotFoundError


@dataclass(frozen=True)
class Adapter:
    """An adapter that was loaded under a name.

    Attributes:
        name: What requests call it.
        digest: The SHA-256 of its weights, in hexadecimal.
        folder: Where it is.
        base: The model that it was trained on, as its folder says.
    """

    name: str
    digest: str
    folder: str
    base: str | None


class AdapterNames(Mapping[str, Adapter]):
    """The adapters of an engine by name. Belongs to the loop of the engine's callers.

    A name that is given to another adapter means that one from then on; requests that were begun
    before keep the one that they began with.
    """

    def __init__(self) -> None:
        self._by_name: dict[str, Adapter] = {}

    def __getitem__(self, name: str) -> Adapter:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def add(self, adapter: Adapter) -> None:
        """Give the adapter its name."""
        self._by_name[adapter.name] = adapter

    def remove(self, name: str) -> Adapter:
        """Take the name away from its adapter, and return that.

        Raises:
            ModelNotFoundError: There is no such name.
        """
        adapter = self.find(name)
        del self._by_name[name]
        return adapter

    def find(self, name: str) -> Adapter:
        """The adapter of that name.

        Raises:
            ModelNotFoundError: There is none.
        """
        found = self._by_name.get(name)
        if found is None:
            names = ", ".join(map(repr, sorted(self._by_name))) or "none"
            raise ModelNotFoundError(
                f"There is no adapter '{name[:100]}'; loaded: {names}.", param="adapter"
            )
        return found
