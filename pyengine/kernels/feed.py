"""Input tokens that only the device knows yet: what it sampled in the step before.

Bytes moved: 16 for each token that is fed. The number of them is read on the device, so that a
captured graph takes that of each step; there is a program for each ``BLOCK`` of all that may be.
"""

import torch

from pyengine._core import step_numbers
from pyengine.kernels.language import tl, triton

BLOCK = 256
"""Feeds that a program does."""
_NUM_FEEDS = step_numbers()["num_feeds"]


@triton.jit
def feed_kernel(
    header_ptr, token_ids_ptr, feed_token_ptr, feed_sequence_ptr, last_token_ptr,
    NUM_FEEDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Each program does its part of the feed list, most often nothing."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < tl.load(header_ptr + NUM_FEEDS)
    sequence = tl.load(feed_sequence_ptr + index, mask=inside, other=0)
    token = tl.load(last_token_ptr + sequence, mask=inside, other=0)
    place = tl.load(feed_token_ptr + index, mask=inside, other=0)
    tl.store(token_ids_ptr + place, token, mask=inside)


def feed(
    header: torch.Tensor,
    token_ids: torch.Tensor,
    feed_token: torch.Tensor,
    feed_sequence: torch.Tensor,
    last_token: torch.Tensor,
) -> None:
    """``token_ids[feed_token[i]] = last_token[feed_sequence[i]]`` for each feed i of the step.

    Queues one kernel on the current stream; can be captured. All are fields of the step on the
    device, in one piece.

    Args:
        header: int64, the step's; see :func:`pyengine._core.step_numbers`.
        token_ids: int32 [tokens], written.
        feed_token: int32 [feeds], each place once.
        feed_sequence: int32 [feeds], where in ``last_token``.
        last_token: int32, as :func:`.sampling.verify.verify` leaves it.
    """
    if len(feed_token):
        feed_kernel[(triton.cdiv(len(feed_token), BLOCK),)](
            header, token_ids, feed_token, feed_sequence, last_token,
            NUM_FEEDS=_NUM_FEEDS, BLOCK=BLOCK, enable_fp_fusion=False,
        )  # fmt: skip


def feed_reference(
    header: torch.Tensor,
    token_ids: torch.Tensor,
    feed_token: torch.Tensor,
    feed_sequence: torch.Tensor,
    last_token: torch.Tensor,
) -> None:
    """As :func:`feed`, in torch; reads the header on the CPU, so it waits for the device."""
    count = int(header[_NUM_FEEDS])
    token_ids[feed_token[:count].long()] = last_token[feed_sequence[:count].long()]
