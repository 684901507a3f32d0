"""Writes ``pyengine/model/step_names.py`` from the declaration of a step in the module.

Run ``python -m tools.step_names`` after a change of ``rust/scheduler/src/step/buffers.rs``. A test
fails when the file is not what it writes.
"""

from pathlib import Path

from pyengine._core import StepLayout, step_numbers

FILE = Path(__file__).parent.parent / "pyengine/model/step_names.py"
TEXT = '''"""The names of a step's numbers and fields, for type checkers.

``python -m tools.step_names`` writes this file. ``rust/scheduler/src/step/buffers.rs`` declares
them with their types, lengths and meanings.
"""

from typing import Generic, TypeVar

Array = TypeVar("Array")


class StepNumbers:
    """The numbers of a step's header."""

{numbers}


class StepNames(Generic[Array]):
    """A view of each field of a step, and of its results."""

{fields}
'''


def text() -> str:
    """The file."""
    layout = StepLayout(1, 1, 1, vocab_size=1)
    numbers = "\n".join(f"    {name}: int" for name in step_numbers())
    fields = "\n".join(f"    {name}: Array" for name in layout.fields())
    return TEXT.format(numbers=numbers, fields=fields)


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
