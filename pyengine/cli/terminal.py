"""Terminal output of commands: progress, and a model's text without control codes."""

import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from pyengine.async_engine import AsyncEngine
    from pyengine.model.progress import Progress
    from pyengine.settings.config import EngineConfig

# A model may write escape sequences, which a terminal would obey.
_UNSAFE = {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}


def show(text: str, stream: TextIO | None = None) -> None:
    """Write a model's text at once; to a terminal without control codes."""
    stream = sys.stdout if stream is None else stream
    stream.write(text.translate(_UNSAFE) if stream.isatty() else text)
    stream.flush()


class Words:
    """Writes an answer in pieces; a terminal gets whole words in each line, and reasoning faint.

    A word that reaches the last column is taken back, and written on the next line.
    """

    def __init__(self) -> None:
        self._column = 0
        self._word = ""

    def show(self, text: str, *, faint: bool = False) -> None:
        """Write a piece at once; reasoning, which is ``faint``, to a terminal only."""
        if not sys.stdout.isatty():
            show("" if faint else text)
        elif text:
            made = "".join(map(self._placed, text.translate(_UNSAFE)))
            sys.stdout.write(f"\x1b[2m{made}\x1b[22m" if faint else made)
            sys.stdout.flush()

    def _placed(self, char: str) -> str:
        """A character, and what puts it into its line."""
        from prompt_toolkit.utils import get_cwidth

        if char.isspace():
            self._word = ""
            self._column = 0 if char == "\n" else self._column + 1
            return " " if char == "\t" else char
        back, room = get_cwidth(self._word), shutil.get_terminal_size().columns
        self._word += char
        self._column += get_cwidth(char)
        if self._column < room or back + 1 >= room:
            return char
        self._column = get_cwidth(self._word)
        return f"\x1b[{back}D\x1b[K\n{self._word}" if back else f"\n{char}"


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


@asynccontextmanager
async def started(config: "EngineConfig") -> AsyncIterator["AsyncEngine"]:
    """The engine of ``config`` during the block; a bar shows how it is loaded."""
    from pyengine.async_engine import AsyncEngine

    engine = AsyncEngine(config=config)
    try:
        with loading_bar(engine.model_name) as progress:
            await engine.start(progress)
        yield engine
    finally:
        await engine.close()
