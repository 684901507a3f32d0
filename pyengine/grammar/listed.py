"""Parameters in an order, with commas between those that are there."""

from collections.abc import Iterable, Sequence

from pyengine.grammar.algebra import KeyOrder, any_of, any_order, optional, sequence, text
from pyengine.grammar.description import Grammar, bounded


def listed(
    parts: Iterable[tuple[bool, Grammar]], comma: str, key_order: KeyOrder = "schema"
) -> list[Grammar]:
    """The parts of ``a=1, b=2``: each whether it is required, and how it is written.

    In their own order, from the first required one on, each brings its comma; those before it, all
    optional, bring it behind them. Where none is required, see :func:`_some`. ``comma`` may be
    empty.

    Raises:
        InvalidRequestError: The parts are too long together, or too many for any order.
    """
    required: list[bool] = []

    def noted() -> Iterable[Grammar]:
        for is_required, part in parts:
            required.append(is_required)
            yield part

    made = list(bounded(noted()))
    pairs = list(zip(required, made, strict=True))
    if key_order == "any" and len(made) > 1:
        must, may = ([part for needed, part in pairs if needed is kind] for kind in (True, False))
        return [any_order(must, may, separator=text(comma) if comma else None)]
    if not comma:
        return [part if needed else optional(part) for needed, part in pairs]
    if True not in required:
        return [optional(_some(made, comma))] if made else []
    first = required.index(True)
    before = [optional(sequence(each, text(comma))) for each in made[:first]]
    after = [sequence(text(comma), each) for each in made[first + 1 :]]
    rest = zip(required[first + 1 :], after, strict=True)
    return [*before, made[first], *(each if needed else optional(each) for needed, each in rest)]


def _some(made: Sequence[Grammar], comma: str) -> Grammar:
    """At least one of these, in order, with commas between them.

    Some of the first half and then perhaps of the second, or only of the second: as long as
    O(n log n) parameters.
    """
    if len(made) == 1:
        return made[0]
    left, right = made[: len(made) // 2], made[len(made) // 2 :]
    after = [optional(sequence(text(comma), each)) for each in right]
    return any_of(sequence(_some(left, comma), *after), _some(right, comma))
