"""From documents to the tensors of a training step."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from tools.demo_model.data import documents

__all__ = ["ROUND", "Microbatch", "steps"]

ROUND = 768
"""Documents of a round, which is batched as a whole."""

_STEP_TOKENS = 2900
_MICROBATCH_TOKENS = 1536
# Lengths to pad to.  Few distinct shapes matter on a CPU: its library prepares
# kernels for every new one, which took a third of the time.
_LENGTHS = (24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 384, 512, 768, 1280)
_PLACES = 128
_IGNORED = -100

Row = tuple[list[int], list[bool]]


@dataclass(frozen=True)
class Microbatch:
    """Documents of like length, padded at the right.

    ``ids`` [batch, time] int64; ``places`` [n] int64 are the flat indices of
    the tokens before those trained on, and ``targets`` [n] int64 the latter,
    filled up to a round n with targets that the loss ignores; ``trained`` is
    how many are not such.
    """

    ids: Tensor
    places: Tensor
    targets: Tensor
    trained: int


def _microbatch(group: list[Row], batch: int, time: int) -> Microbatch:
    """Pad a group with id 0; padding follows the text, so no mask is needed."""
    padded = torch.zeros(batch, time, dtype=torch.int64)
    trained = torch.zeros(batch, time, dtype=torch.bool)
    for row, (ids, flags) in enumerate(group):
        padded[row, : len(ids)] = torch.tensor(ids)
        trained[row, : len(ids)] = torch.tensor(flags)
    trained[:, 0] = False
    targets = padded[trained]
    count = -(-len(targets) // _PLACES) * _PLACES
    places = torch.zeros(count, dtype=torch.int64)
    places[: len(targets)] = trained.flatten().nonzero().flatten() - 1
    filled = torch.full((count,), _IGNORED)
    filled[: len(targets)] = targets
    return Microbatch(padded, places, filled, len(targets))


def _rows(tokenizer: Tokenizer, seed: int, index: int, late: bool) -> Iterator[Row]:
    """The documents of a round as token ids with whether each is trained on."""
    texts = list(documents(seed, index, ROUND, late))
    pieces = [text for document in texts for text, _ in document]
    encoded = iter(tokenizer.encode_batch_fast(pieces, add_special_tokens=False))
    for document in texts:
        ids: list[int] = []
        flags: list[bool] = []
        for _, trained in document:
            piece = next(encoded).ids
            ids += piece
            flags += [trained] * len(piece)
        yield ids, flags


def steps(tokenizer: Tokenizer, seed: int, index: int, late: bool) -> list[list[Microbatch]]:
    """The steps of a round, each as its microbatches, from nothing but the arguments.

    Documents of like length share a microbatch; the microbatches come in a
    random order, so a step sees many lengths and thus many skills.
    """
    buckets: dict[int, list[Row]] = {time: [] for time in _LENGTHS}
    for row in _rows(tokenizer, seed, index, late):
        if len(row[0]) <= _LENGTHS[-1]:
            buckets[next(time for time in _LENGTHS if time >= len(row[0]))].append(row)
    batches = []
    for time, rows in buckets.items():
        size = max(1, _MICROBATCH_TOKENS // time)
        for start in range(0, len(rows), size):
            group = rows[start : start + size]
            count = min(size, -(-len(group) // 4) * 4) if len(group) > 4 else len(group)
            batches.append(_microbatch(group, count, time))
    random.Random(index).shuffle(batches)
    grouped: list[list[Microbatch]] = [[]]
    tokens = 0
    for batch in batches:
        if tokens >= _STEP_TOKENS:
            grouped.append([])
            tokens = 0
        grouped[-1].append(batch)
        tokens += batch.ids.numel()
    return grouped
