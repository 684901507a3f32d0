"""Terminal output of commands: progress, and a model's text without control codes."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from pyengine.model.progress import Progress

# A model may write escape sequences, which a terminal would obey.
_UNSAFE = {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}


def show(text: str, stream: TextIO | None = None) -> None:
    """Write a model's text at once; to a terminal without control codes."""
    stream = sys.stdout if stream is None else stream
    stream.write(text.translate(_UNSAFE) if stream.isatty() else text)
    stream.flush()


def show_reasoning(text: str) -> None:
    """Write a model's reasoning in faint type, to a terminal only."""
    if text and sys.stdout.isatty():
        sys.stdout.write(f"\x1b[2m{text.translate(_UNSAFE)}\x1b[22m")
        sys.stdout.flush()


@contextmanager
def working(text: str) -> Iterator[None]:
    """Show ``text`` on stderr during the block; nothing where stderr is no terminal."""
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(text)):
        yield


@contextmanager
def loading_bar(name: str) -> Iterator["Progress"]:
    """A progress bar on stderr while ``name`` is loaded; nothing where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return

    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Loaded(DownloadColumn):
        """Nothing until it is known how much there is: a GPU's libraries are loaded first."""

        def render(self, task: Task) -> Text:
            return Text() if task.total is None else super().render(task)

    bar = Progress(
        TextColumn("loading {task.description}"),
        BarColumn(),
        Loaded(binary_units=True),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task(name, total=None)

    def progress(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total)

    with bar:
        yield progress
