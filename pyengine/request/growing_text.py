"""A text that comes in pieces, kept in about as many bytes as it has."""


class GrowingText:
    """A text that grows, as few pieces whose lengths fall: each is longer than all after it.

    Adding costs O(log n) copies of each character in all; a piece of a few characters on its own
    would cost fifty bytes. One thread at a time.
    """

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def add(self, text: str) -> None:
        """Append ``text``."""
        pieces = self._pieces
        while pieces and len(pieces[-1]) <= len(text):
            text = pieces.pop() + text
        if text:
            pieces.append(text)

    def __str__(self) -> str:
        return "".join(self._pieces)
