"""Positions as rows of a table that are added to embeddings, in the place of rotation."""

from pyengine.errors import ModelLoadError
from pyengine.model.architectures.buffer import Buffer
from pyengine.model.architectures.parts import Step
from pyengine.model.architectures.projections import Projections
from pyengine.model.architectures.traits import PositionTable
from pyengine.model.weights.matrix import Matrix


class PositionEmbedding:
    """Adds a row for each token's position. Every rank has the table as a whole."""

    def __init__(self, made: Projections, table: PositionTable) -> None:
        """Load the table.

        Raises:
            ModelLoadError: Sequences are longer than it: a draft model's, beside a model that was
                made for more.
        """
        info, parts = made.info, made.parts
        positions = int(made.config.get("max_position_embeddings") or 0)
        if positions < info.max_context:
            raise ModelLoadError(
                f"{info.name} has positions for {positions} tokens, and sequences may have "
                f"{info.max_context}: give 'max_context' of {positions}, or another draft model"
            )
        rows = table.first + positions
        weight = made.weights.table(f"{table.name}.weight", rows, info.hidden_size)
        (whole,) = weight.parts
        self._table = parts.table(Matrix((whole.rows(slice(table.first, rows)),)))
        self._rows, self._sum = (parts.buffer(parts.max_tokens, info.hidden_size) for _ in range(2))
        self._add = parts.no_norm()

    def __call__(self, step: Step, embeddings: Buffer, tokens: int) -> None:
        """Add to ``embeddings`` [tokens, hidden] in place."""
        self._table(step.positions, self._rows, tokens)
        self._add(embeddings, self._rows, self._sum, tokens)
