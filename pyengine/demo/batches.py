"""From documents to the tensors of a training step."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from pyengine.demo.data import documents

__all__ = ["Microbatch", "steps"]

DOCUMENTS_PER_STEP = 64
TOKENS_PER_MICROBATCH = 3072
LONGEST = 1280


@dataclass(frozen=True)
class Microbatch:
    """Documents of like length, padded at the right.

    ``ids`` [batch, time] int64; ``places`` [n] int64 are the flat indices of
    the tokens before those trained on, and ``targets`` [n] int64 the latter.
    """

    ids: Tensor
    places: Tensor
    targets: Tensor


def _microbatch(group: list[tuple[list[int], list[bool]]]) -> Microbatch:
    """Pad a group with id 0; padding follows the text, so no mask is needed."""
    # Few distinct shapes spare the CPU library from preparing a kernel for each.
    time = -(-max(len(ids) for ids, _ in group) // 16) * 16
    padded = torch.zeros(len(group), time, dtype=torch.int64)
    trained = torch.zeros(len(group), time, dtype=torch.bool)
    for row, (ids, flags) in enumerate(group):
        padded[row, : len(ids)] = torch.tensor(ids)
        trained[row, : len(ids)] = torch.tensor(flags)
    trained[:, 0] = False
    targets = padded[trained]
    places = trained.flatten().nonzero().flatten() - 1
    return Microbatch(padded, places, targets)


def _step(tokenizer: Tokenizer, seed: int, index: int) -> list[Microbatch]:
    """The microbatches of one step: a fixed number of documents, by length."""
    texts = list(documents(seed, index, DOCUMENTS_PER_STEP))
    pieces = [text for document in texts for text, _ in document]
    encoded = iter(tokenizer.encode_batch_fast(pieces, add_special_tokens=False))
    rows: list[tuple[list[int], list[bool]]] = []
    for document in texts:
        ids: list[int] = []
        flags: list[bool] = []
        for _, trained in document:
            piece = next(encoded).ids
            ids += piece
            flags += [trained] * len(piece)
        if len(ids) <= LONGEST:
            rows.append((ids, flags))
    rows.sort(key=lambda row: len(row[0]))
    groups: list[list[tuple[list[int], list[bool]]]] = [[]]
    for row in rows:
        if groups[-1]:
            shortest, area = len(groups[-1][0][0]), (len(groups[-1]) + 1) * len(row[0])
            longer = len(row[0]) > 1.3 * shortest
            if area > TOKENS_PER_MICROBATCH or (longer and area > TOKENS_PER_MICROBATCH // 3):
                groups.append([])
        groups[-1].append(row)
    random.Random(index).shuffle(groups)
    return [_microbatch(group) for group in groups]


def steps(tokenizer: Tokenizer, seed: int, first: int, last: int) -> Iterator[list[Microbatch]]:
    """Yield the steps' microbatches.

    A step depends on the seed and its index only, so a resumed run sees what
    an uninterrupted one would have seen.
    """
    for index in range(first, last):
        yield _step(tokenizer, seed, index)
