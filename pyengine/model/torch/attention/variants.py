"""The kinds of steps that attention is planned for, and graphs are kept for.

::

    decode     a b c d            one query each
    mixed      a b c d eeee ff    up to 8 prompts behind such rows, one of them long
    prompts    eeee ff g          such prompts alone
    ragged     aa b cc eeee f     any other
"""

from pyengine.model.batch import StepBuffers
from pyengine.model.torch.attention import cascade

SHORT_QUERIES = 64
"""Rows of up to this many queries are short; on an H20 FlashAttention 3 is ahead from 128 on."""

MOST_PROMPTS = 8
"""Prompts of a step that is planned for prompts."""

OF_PROMPTS = ("mixed", "prompts")
"""Kinds of steps with a long prompt, for whose sake tiles are larger."""


def decodes(host: StepBuffers) -> bool:
    """Whether every row of the step has one query token."""
    return host.num_rows == host.num_tokens and host.max_query_length <= 1


def variant_of(
    host: StepBuffers, block_size: int, *, token_bytes: int, part_bytes: int
) -> tuple[str, int]:
    """The kind of a step, or ``decode_cascade`` or ``ragged_cascade`` where all rows begin with the
    same pages and it pays to attend to these once; and the tokens that all share.

    Args:
        host: The step, planned.
        block_size: Tokens of a page.
        token_bytes: As of :func:`.cascade.cascade_pays`.
        part_bytes: As of it.
    """
    shared = cascade.shared_tokens(host, block_size)
    pays = shared > 0 and cascade.cascade_pays(
        host.num_rows,
        host.num_tokens,
        shared,
        token_bytes=token_bytes,
        part_bytes=part_bytes,
        parts=2,
    )
    if pays:
        return "decode_cascade" if decodes(host) else "ragged_cascade", shared
    return kind_of(host), shared


def kind_of(host: StepBuffers) -> str:
    """``decode``, ``mixed``, ``prompts`` or ``ragged``. O(1)."""
    if decodes(host):
        return "decode"
    first = host.num_decode_rows
    few = 0 < host.num_rows - first <= MOST_PROMPTS
    if not few or host.max_query_length <= SHORT_QUERIES or host.query_start[first] != first:
        return "ragged"
    return "mixed" if first else "prompts"
