"""Places the engine's actors: on threads of this process, in a process of their own, or behind
a supervisor that several HTTP workers share.

The queues are the same in each; a placement only starts, watches and stops the engine.
"""

from collections.abc import Sequence
from typing import Literal

from pyengine.errors import ConfigError
from pyengine.logits_processors import Call, LogitsProcessor
from pyengine.placement.protocol import FrontendSlot, Placement, Watcher

__all__ = ["FrontendSlot", "Placement", "PlacementName", "Watcher", "placed"]

PlacementName = Literal["thread", "process"]


def placed(name: PlacementName, processors: Sequence[LogitsProcessor | Call] = ()) -> Placement:
    """The placement of that name, whose engine gets these logits processors.

    Raises:
        ConfigError: There is none, or objects cannot get there.
    """
    if name == "thread":
        from pyengine.placement.thread import ThreadPlacement

        return ThreadPlacement(processors)
    if processors:
        raise ConfigError(
            "'logits_processors' has objects, which stay in this process: with 'placement' of "
            f"{name!r} name them 'module:name', so that the engine's process imports them",
            param="logits_processors",
        )
    if name == "process":
        from pyengine.placement.process import ProcessPlacement

        return ProcessPlacement()
    raise ConfigError(f"'placement' must be thread or process, not {name!r}", param="placement")
