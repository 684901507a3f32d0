"""A second input of each layer, from the token itself (Gemma Team, "Gemma 3n", 2025)::

token ─► table ───────────────┐
embedding ─► linear ─► norm ──+─► [layers * width], a part for each layer

hidden ─► gate ─► activation ─► * part ─► linear ─► norm ─► added to hidden
"""

from pyengine.model.architectures.blocks import Block
from pyengine.model.architectures.buffer import Buffer
from pyengine.model.architectures.parts import Step
from pyengine.model.architectures.projections import Projections
from pyengine.model.architectures.traits import LayerInputs


class InputTable:
    """The inputs of all layers, [tokens, layers * width]. Every rank has them as a whole."""

    def __init__(self, made: Projections, inputs: LayerInputs) -> None:
        """Load the table and the projection."""
        parts, weights, hidden = made.parts, made.weights, made.info.hidden_size
        layers = len(made.info.layers)
        width = layers * inputs.width
        self._parts = parts
        self._names = inputs
        table = weights.outputs({f"{inputs.table}.weight": inputs.vocab}, width)
        self._table = parts.shared_table(table, inputs.vocab)
        self._projection = made.whole(inputs.projection, width, hidden)
        weight = weights.vector(f"{inputs.norm}.weight", inputs.width)
        # Each layer's part is normalized by itself, as a head is.
        self._norm = parts.head_norm(weight, weight, made.traits.epsilon, layers)
        self._add = parts.no_norm()
        self._scales = hidden**-0.5, inputs.width**0.5, 2**-0.5
        self._looked_up, self._inputs, self._copy = (
            parts.buffer(parts.max_tokens, width) for _ in range(3)
        )
        self._gates, self._inner = (parts.buffer(parts.max_tokens, inputs.width) for _ in range(2))

    def __call__(self, step: Step, embeddings: Buffer, tokens: int) -> None:
        """Compute them from a step's tokens and their embeddings [tokens, hidden]."""
        of_projection, of_table, of_both = self._scales
        self._projection(embeddings, self._inputs, tokens)
        self._parts.scale(self._inputs, of_projection, tokens)
        self._norm(self._inputs, tokens)
        self._table(step.token_ids, self._looked_up, tokens)
        self._parts.scale(self._looked_up, of_table, tokens)
        self._add(self._inputs, self._looked_up, self._copy, tokens)
        self._parts.scale(self._inputs, of_both, tokens)

    def block(self, made: Projections, layer: int, start: str, raw: Buffer) -> Block:
        """A layer's part of the inputs, to hidden states; its names begin with ``start``, and
        ``raw`` is [tokens, hidden].
        """
        names, hidden, parts = self._names, made.info.hidden_size, made.parts
        to_gates = made.whole(f"{start}{names.gate}", names.width, hidden)
        project = made.whole(f"{start}{names.out}", hidden, names.width)
        after, column = made.norm(f"{start}{names.after}"), layer * names.width

        def given(step: Step, x: Buffer, out: Buffer, tokens: int) -> None:
            to_gates(x, self._gates, tokens)
            parts.activate(made.traits.activation, self._gates, self._inner, tokens)
            parts.multiply(self._inner, self._inputs, column, tokens)
            project(self._inner, raw, tokens)
            after(raw, None, out, tokens)

        return given
