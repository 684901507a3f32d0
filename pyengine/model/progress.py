"""How far the loading of a model is."""

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called while weights load, with (bytes loaded, bytes in all)."""
