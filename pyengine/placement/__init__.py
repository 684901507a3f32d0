"""Where the engine's actors run: on threads of this process, in a process of their own, or behind
a supervisor that several HTTP workers share.

The queues are the same in each; a placement only starts, watches and stops the engine.
"""

from typing import Literal

from pyengine.errors import ConfigError
from pyengine.placement.protocol import FrontendSlot, Placement, Watcher

__all__ = ["FrontendSlot", "Placement", "PlacementName", "Watcher", "placed"]

PlacementName = Literal["thread", "process"]


def placed(name: PlacementName) -> Placement:
    """The placement of that name.

    Raises:
        ConfigError: There is none.
    """
    if name == "thread":
        from pyengine.placement.thread import ThreadPlacement

        return ThreadPlacement()
    if name == "process":
        from pyengine.placement.process import ProcessPlacement

        return ProcessPlacement()
    raise ConfigError(f"'placement' must be thread or process, not {name!r}", param="placement")
