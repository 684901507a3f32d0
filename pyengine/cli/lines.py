"""Where a conversation's lines come from: a person at a terminal, or a pipe."""

import signal
import sys
from collections.abc import Sequence
from typing import Protocol


class Lines(Protocol):
    """A source of lines."""

    async def next(self) -> str | None:
        """The next line without its end, or None when there are no more."""


class TerminalLines:
    """Lines typed at a terminal, with line editing, history and completion of commands."""

    def __init__(self, commands: Sequence[str]) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.key_binding import KeyBindings

        keys = KeyBindings()
        keys.add("escape", "enter")(lambda event: event.current_buffer.insert_text("\n"))
        completer = WordCompleter(list(commands), sentence=True)
        self._session: PromptSession[str] = PromptSession(
            completer=completer, complete_while_typing=False, key_bindings=keys
        )

    async def next(self) -> str | None:
        """The next line. Ctrl-C throws the line away, Ctrl-D ends."""
        while True:
            try:
                # prompt_toolkit's SIGINT handler would remove the conversation's when it ends.
                return await self._session.prompt_async(">>> ", handle_sigint=False)
            except KeyboardInterrupt:
                continue
            except EOFError:
                return None


class PipedLines:
    """Lines of stdin as they are; bytes that are not UTF-8 become U+FFFD."""

    async def next(self) -> str | None:
        """The next line. Blocks the loop, on which nothing else runs between two answers."""
        interrupt = signal.getsignal(signal.SIGINT)
        # Between answers, Ctrl-C ends the program.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            line = sys.stdin.buffer.readline()
        finally:
            signal.signal(signal.SIGINT, interrupt)
        return line.decode(errors="replace").rstrip("\r\n") if line else None
