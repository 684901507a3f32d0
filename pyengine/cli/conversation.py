"""A conversation in the terminal: its turns, and its slash commands."""

import asyncio
import re
import shutil
import signal
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from pyengine.cli.answer_stats import AnswerStats
from pyengine.cli.lines import Lines
from pyengine.cli.metric_lines import metric_lines
from pyengine.cli.parameters import changed, settings
from pyengine.cli.terminal import Words
from pyengine.errors import (
    ContextLengthError,
    EngineDeadError,
    InvalidRequestError,
    PyengineError,
    RequestAbortedError,
)
from pyengine.sampling import SamplingParams

if TYPE_CHECKING:
    from pyengine.async_engine import AsyncEngine
    from pyengine.chat.generation import ChatGeneration

ANSWERS_KEPT = 5


class Conversation:
    """The turns so far and how the next answer is sampled. Lives on the engine's loop.

    Attributes:
        messages: The conversation so far, as the chat template takes it.
        params: How answers are sampled; ``/set`` changes it.
        answers: Stats of the last answers, newest last.
    """

    def __init__(self, engine: "AsyncEngine", params: SamplingParams, system: str | None) -> None:
        self.engine = engine
        self.params = params
        self.messages: list[dict[str, str]] = []
        self.answers: list[AnswerStats] = []
        self._system = system
        self._generation: ChatGeneration | None = None
        self._left = False
        self._commands: dict[str, Callable[[str], Awaitable[None]]] = {
            "/help": self._help,
            "/exit": self._exit,
            "/quit": self._exit,
            "/bye": self._exit,
            "/stats": self._stats,
            "/metrics": self._metrics,
            "/reset": self._reset,
            "/retry": self._retry,
            "/save": self._save,
            "/set": self._set,
            "/system": self._set_system,
        }
        self._start_over()

    def commands(self) -> list[str]:
        """The commands' names."""
        return list(self._commands)

    async def run(self, lines: Lines) -> None:
        """Answer line by line until there are no more. Ctrl-C stops the answer that runs.

        Raises:
            EngineDeadError: The engine has stopped.
        """
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self.interrupt)
        try:
            while not self._left and (line := await lines.next()) is not None:
                try:
                    await self._take(line.strip())
                except EngineDeadError:
                    raise
                except PyengineError as error:
                    click.echo(f"error: {error.message}", err=True)
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    def interrupt(self) -> None:
        """Stop the answer that runs, if one does."""
        if self._generation is not None:
            self._generation.abort()

    async def _take(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        if name in self._commands:
            await self._commands[name](rest.strip())
        elif line.startswith("/"):
            raise InvalidRequestError(f"there is no command {name}; /help lists them")
        elif line:
            await self._answer(line)

    async def _answer(self, question: str) -> None:
        """One turn. A question without an answer is dropped; a stopped answer keeps its text."""
        said: list[str] = []
        words = Words()
        thought = False
        before = await self.engine.metrics()
        self.messages.append({"role": "user", "content": question})
        try:
            generation = self._generation = self.engine.chat(self.messages, self.params)
            async for update in generation:
                words.show(update.reasoning, faint=True)
                if update.text and thought and not any(said):
                    words.show("\n\n")
                thought = thought or bool(update.reasoning)
                said.append(update.text)
                words.show(update.text)
            click.echo()
        except RequestAbortedError:
            click.echo("\n[stopped]" if said else "[stopped]")
        except ContextLengthError as error:
            raise InvalidRequestError(
                f"{error.message}; /reset starts a new conversation"
            ) from error
        finally:
            self._generation = None
            if text := "".join(said):
                self.messages.append({"role": "assistant", "content": text})
            else:
                self.messages.pop()
        after = await self.engine.metrics()
        stats = AnswerStats.between(before, after, generation.outcome.usage)
        if stats is not None:
            self.answers = [*self.answers, stats][-ANSWERS_KEPT:]

    def _start_over(self) -> None:
        system = self._system
        self.messages = [] if system is None else [{"role": "system", "content": system}]

    async def _help(self, _: str) -> None:
        _table(
            {
                "/stats": "tokens and speed of the last answers",
                "/metrics": "metrics of the engine: cache, requests, latencies, CPU overhead",
                "/reset": "start a new conversation",
                "/retry": "answer the last message again",
                "/save FILE": "write the conversation to a file, as JSON",
                "/system TEXT": "change the system message, and start a new conversation",
                "/set": "show the sampling parameters",
                "/set NAME=VALUE ...": "change them, as in /set temperature=0.5 max_tokens=100",
                "/exit": "exit; so does Ctrl-D",
                "Alt-Enter": "a new line in the message",
                "Ctrl-C": "stop the answer",
            }
        )

    async def _exit(self, _: str) -> None:
        self._left = True

    async def _stats(self, _: str) -> None:
        if not self.answers:
            click.echo("no answer yet")
        for number, stats in enumerate(self.answers, 1):
            click.echo(f"answer {number} of the last {len(self.answers)}")
            _table(stats.lines())

    async def _metrics(self, _: str) -> None:
        _table(metric_lines(await self.engine.metrics()))

    async def _reset(self, _: str) -> None:
        self._start_over()
        click.echo("new conversation")

    async def _retry(self, _: str) -> None:
        asked = [at for at, message in enumerate(self.messages) if message["role"] == "user"]
        if not asked:
            raise InvalidRequestError("there is no message to answer again")
        question = self.messages[asked[-1]]["content"]
        self.messages = self.messages[: asked[-1]]
        await self._answer(question)

    async def _save(self, name: str) -> None:
        text = msgspec.json.format(msgspec.json.encode(self.messages))
        try:
            await asyncio.to_thread(Path(name).write_bytes, text)
        except OSError as error:
            raise InvalidRequestError(f"cannot write {name!r}: {error.strerror}") from error
        click.echo(f"{len(self.messages)} messages in {name}")

    async def _set(self, text: str) -> None:
        before = settings(self.params)
        self.params = changed(self.params, text)
        named = [name for name in before if re.search(rf"\b{name}=", text)] or before
        _table({name: repr(settings(self.params)[name]) for name in named})

    async def _set_system(self, text: str) -> None:
        self._system = text or None
        await self._reset("")


def _table(lines: dict[str, str]) -> None:
    width = max(map(len, lines))
    room = shutil.get_terminal_size().columns
    for name, value in lines.items():
        line, indent = f"  {name:<{width}}  {value}", " " * (width + 4)
        click.echo(textwrap.fill(line, max(room, width + 20), subsequent_indent=indent))
