"""Kernels that follow one another closely: programmatic dependent launch, from compute capability
9.0 on.

A kernel of the chain is launched while the one before it ends, so that launching it, and loading
what no kernel writes, is done by the time that its inputs are there::

    a       ├───────────────┤                 a       ├───────────────┤
    b                         ├──┼────────┤   b                  ├──┼─┼───────┤
                              launch, weights                    launch, weights, wait

Each calls :func:`wait_for_inputs` before it reads or writes anything that another kernel of the
step may write or read. It returns when the kernels before it have ended and their writes are seen;
these have waited for those before them. So every kernel of the chain may let the next one be
launched at once: a kernel that is not of the chain, as the libraries' mostly are, is launched when
this one has ended.
"""

from functools import cache
from typing import Any

import torch

from pyengine.kernels.language import tl, triton

CAPABILITY = (9, 0)
"""The least that can do it."""


@triton.jit
def wait_for_inputs(CHAINED: tl.constexpr):
    """Let the next kernel be launched once all programs are here, and wait for those before."""
    if CHAINED:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@cache
def capable(device: torch.device) -> bool:
    """Whether ``device`` launches kernels ahead."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= CAPABILITY


def chained(device: torch.device) -> dict[str, Any]:
    """Launch arguments of a kernel of the chain on ``device``, beside the kernel's own."""
    return {"CHAINED": True, "launch_pdl": True} if capable(device) else {}
