"""The messages between rank 0 and another rank on the control line; steps go by a ring.

::

    rank 0   Begin ─────────────► Meet ──────────────────────► (steps, by the ring) ─► end of line
    rank                 ◄─ Here            ◄─ Loading ... ◄─ Ready
                         ◄─ Failed, at any time, as the last message
"""

from collections.abc import Callable

import msgspec

from pyengine.placement.children import Failed, Loading
from pyengine.settings.config import EngineConfig


class Begin(msgspec.Struct, tag=True):
    """The rank's number, and the descriptors of the ring with the steps; to a rank."""

    config: EngineConfig
    rank: int
    steps: tuple[int, int]


class Here(msgspec.Struct, tag=True):
    """Torch is imported, and the ring attached; from a rank."""


class Meet(msgspec.Struct, tag=True):
    """All ranks have started: connect to the store at this port; to a rank."""

    port: int


class Ready(msgspec.Struct, tag=True):
    """The weights are loaded; from a rank."""


ToRank = Begin | Meet
FromRank = Here | Loading | Ready | Failed

decode_to_rank: Callable[[bytes], ToRank] = msgspec.json.Decoder(ToRank).decode
decode_from_rank: Callable[[bytes], FromRank] = msgspec.json.Decoder(FromRank).decode
