"""What a model chose becomes the input of another: tokens that the draft model begins with, drafts
that become the step's and the next pass's.

Bytes moved: 28 for each draft, 16 for each sequence; there is a program for each ``BLOCK`` of them.
"""

import torch

from pyengine.kernels.language import tl, triton

BLOCK = 256
"""Drafts, or tokens, that a program hands over."""


@triton.jit(do_not_specialize=["drafts", "vocabulary"])
def hand_over_kernel(
    last_token_ptr, sequence_ptr, place_ptr, token_ids_ptr, drafts, vocabulary,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Each program does its part of the drafts."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < drafts
    sequence = tl.load(sequence_ptr + index, mask=inside, other=0)
    token = tl.load(last_token_ptr + sequence, mask=inside, other=0)
    token = tl.where((token >= 0) & (token < vocabulary), token, 0)
    place = tl.load(place_ptr + index, mask=inside, other=0)
    tl.store(last_token_ptr + sequence, token, mask=inside)
    tl.store(token_ids_ptr + place, token, mask=inside)


def hand_over(
    last_token: torch.Tensor,
    sequence: torch.Tensor,
    places: torch.Tensor,
    token_ids: torch.Tensor,
    vocabulary: int,
) -> None:
    """``token_ids[places[i]] = last_token[sequence[i]]`` for each draft i of a pass.

    A token from ``vocabulary`` on, which one of the models lacks, or -1 where no token was
    possible, becomes 0, in ``last_token`` too. Queues one kernel on the current stream.

    Args:
        last_token: int32 by slot of the sequence table: what the pass chose.
        sequence: int32 [drafts], each slot once.
        places: int64 [drafts], each place once.
        token_ids: int32 [tokens] of the step, written.
        vocabulary: Tokens that both models have.
    """
    drafts = len(places)
    if drafts:
        hand_over_kernel[(triton.cdiv(drafts, BLOCK),)](
            last_token, sequence, places, token_ids, drafts, vocabulary,
            BLOCK=BLOCK, enable_fp_fusion=False,
        )  # fmt: skip


def hand_over_reference(
    last_token: torch.Tensor,
    sequence: torch.Tensor,
    places: torch.Tensor,
    token_ids: torch.Tensor,
    vocabulary: int,
) -> None:
    """As :func:`hand_over`, in torch."""
    slots = sequence.long()
    tokens = last_token.index_select(0, slots)
    known = (tokens >= 0) & (tokens < vocabulary)
    tokens = torch.where(known, tokens, torch.zeros_like(tokens))
    last_token.index_copy_(0, slots, tokens)
    token_ids.index_copy_(0, places, tokens)


@triton.jit(do_not_specialize=["vocabulary"])
def take_tokens_kernel(source_ptr, out_ptr, count, vocabulary, BLOCK: tl.constexpr):
    """Each program takes its part of the tokens."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(source_ptr + index, mask=index < count, other=0)
    token = tl.where((token >= 0) & (token < vocabulary), token, 0)
    tl.store(out_ptr + index, token, mask=index < count)


def take_tokens(source: torch.Tensor, out: torch.Tensor, vocabulary: int) -> None:
    """``out[i] = source[i]``, or 0 where that is a token from ``vocabulary`` on.

    Queues one kernel on the current stream.

    Args:
        source: int32 [n], tokens of one model.
        out: int32 [n], written: for another model.
        vocabulary: Tokens that both models have.
    """
    count = len(source)
    take_tokens_kernel[(triton.cdiv(count, BLOCK),)](
        source, out, count, vocabulary, BLOCK=BLOCK, enable_fp_fusion=False
    )  # fmt: skip


def take_tokens_reference(source: torch.Tensor, out: torch.Tensor, vocabulary: int) -> None:
    """As :func:`take_tokens`, in torch."""
    known = (source >= 0) & (source < vocabulary)
    out.copy_(torch.where(known, source, torch.zeros_like(source)))
