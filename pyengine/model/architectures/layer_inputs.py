"""A second input of each layer, from the token itself (Gemma Team, "Gemma 3n", 2025)::

token ─► table ───────────────┐
embedding ─► linear ─► norm ──+─► [layers * width], a part for each layer

hidden ─► gate ─► activation ─► * part ─► linear ─► norm ─► added to hidden
"""

from dataclasses import dataclass

from pyengine.model.architectures.buffer import Buffer
from pyengine.model.architectures.parts import Activation, Linear, Norm, Parts, Step
from pyengine.model.architectures.projections import Projections
from pyengine.model.architectures.traits import LayerInputs


@dataclass(frozen=True)
class GatedInputs:
    """A layer's part of the inputs, to hidden states: see the module. A block."""

    parts: Parts
    activation: Activation
    gate: Linear
    out: Linear
    after: Norm
    inputs: Buffer
    column: int
    gates: Buffer
    inner: Buffer
    raw: Buffer

    def __call__(self, step: Step, x: Buffer, out: Buffer, tokens: int) -> None:
        """[tokens, hidden] -> ``out`` [tokens, hidden]."""
        self.gate(x, self.gates, tokens)
        self.parts.activate(self.activation, self.gates, self.inner, tokens)
        self.parts.multiply(self.inner, self.inputs, self.column, tokens)
        self.out(self.inner, self.raw, tokens)
        self.after(self.raw, None, out, tokens)


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

    def block(self, made: Projections, layer: int, start: str, raw: Buffer) -> GatedInputs:
        """The part of a layer, whose names begin with ``start``; ``raw`` is [tokens, hidden]."""
        names, hidden = self._names, made.info.hidden_size
        return GatedInputs(
            made.parts,
            made.traits.activation,
            made.whole(f"{start}{names.gate}", names.width, hidden),
            made.whole(f"{start}{names.out}", hidden, names.width),
            made.norm(f"{start}{names.after}"),
            self._inputs,
            layer * names.width,
            self._gates,
            self._inner,
            raw,
        )
