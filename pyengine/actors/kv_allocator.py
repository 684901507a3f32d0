"""The KV-allocator actor: the only owner of the KV cache's blocks.

It runs on the Scheduler's thread. There a delivery is a call: the planner asks it in Rust, once a
step with the whole plan. What others want of it arrives through the Scheduler's mailbox.
"""

from pyengine._core import KvAllocator
from pyengine.actors.actor import logger


class KvAllocatorActor:
    """Owns ``blocks``, the Rust allocator with its prefix tree. Scheduler's thread only."""

    def __init__(self, num_blocks: int, block_size: int, *, prefix_cache: bool) -> None:
        self.blocks = KvAllocator(num_blocks, block_size, prefix_cache)

    def stats(self) -> dict[str, int]:
        """``free``, ``cached``, ``held`` and ``num_blocks``; the first three sum to the last."""
        free, cached, held = self.blocks.counts()
        return {"free": free, "cached": cached, "held": held, "num_blocks": self.blocks.num_blocks}

    def check_idle(self) -> None:
        """With no request left, every block is free or cached, and the books are right.

        Raises:
            RuntimeError: They are not; the message names what is wrong.
        """
        self.blocks.check()
        held = self.stats()["held"]
        if held:
            logger.error("%d KV blocks are held though no request is left", held)
            raise RuntimeError(f"{held} KV blocks are held though no request is left")
