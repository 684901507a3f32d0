"""What a message costs: in one thread, between a thread and asyncio, between processes.

Each figure stands beside a peer from the standard library, measured in turns in the same run:
``queue.SimpleQueue``, the same with ``loop.call_soon_threadsafe``, ``multiprocessing.Pipe``.
A ratio above 1 means that the mailbox is that many times faster.

    python benches/bench_mailbox.py [--seconds 0.6] [--json -]
"""

import argparse
import asyncio
import multiprocessing
import queue
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from benches.figures import json_option, write_json
from pyengine._core import Mailbox, MailboxClosed, MailboxFull

MESSAGE = b"x" * 128
TURNS = 5
"""Mailbox and peer take turns this often; the median turn counts."""
SPIN_US = 50
"""The bounded spin of the engine's side, where a figure has ``spin`` in its name."""

Turn = Callable[[float], float]
"""Runs for about ``seconds``; returns seconds per message (or per round trip)."""


def per_call(call: Callable[[], object], seconds: float, messages: int = 1) -> float:
    count, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        for _ in range(50):
            call()
        count += 50
    return elapsed / count / messages


async def per_await(call: Callable[[], Awaitable[object]], seconds: float) -> float:
    count, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        for _ in range(20):
            await call()
        count += 20
    return elapsed / count


# One thread: send and receive, one by one and in bursts.


def same_thread(burst: int) -> tuple[Turn, Turn]:
    mailbox = Mailbox()
    simple: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def ring() -> None:
        for _ in range(burst):
            mailbox.send(MESSAGE)
        mailbox.drain()

    def peer() -> None:
        for _ in range(burst):
            simple.put(MESSAGE)
        for _ in range(burst):
            simple.get()

    return lambda s: per_call(ring, s, burst), lambda s: per_call(peer, s, burst)


# A thread that echoes, and an asyncio loop that asks it.


def thread_and_asyncio(seconds: float, spin_us: int) -> float:
    there, back = Mailbox(), Mailbox()

    def echo() -> None:
        while there.wait(spin_us=spin_us):
            for message in there.drain():
                back.send(message)

    async def run() -> float:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes]

        def on_readable() -> None:
            while True:
                for message in back.drain():
                    answer.set_result(message)
                if back.arm():
                    return

        def ask() -> Awaitable[bytes]:
            nonlocal answer
            answer = loop.create_future()
            there.send(MESSAGE)
            return answer

        loop.add_reader(back.fileno(), on_readable)
        on_readable()
        elapsed = await per_await(ask, seconds)
        loop.remove_reader(back.fileno())
        return elapsed

    thread = threading.Thread(target=echo)
    thread.start()
    try:
        return asyncio.run(run())
    finally:
        there.close()
        thread.join()


def thread_and_asyncio_peer(seconds: float) -> float:
    there: queue.SimpleQueue[tuple[asyncio.AbstractEventLoop, asyncio.Future[bytes]] | None]
    there = queue.SimpleQueue()

    def echo() -> None:
        while (request := there.get()) is not None:
            loop, answer = request
            loop.call_soon_threadsafe(answer.set_result, MESSAGE)

    async def run() -> float:
        loop = asyncio.get_running_loop()

        def ask() -> Awaitable[bytes]:
            answer: asyncio.Future[bytes] = loop.create_future()
            there.put((loop, answer))
            return answer

        return await per_await(ask, seconds)

    thread = threading.Thread(target=echo)
    thread.start()
    try:
        return asyncio.run(run())
    finally:
        there.put(None)
        thread.join()


# Two processes: a round trip, and one way as fast as it goes. The child is this file again.


def child(work: str, spin_us: int, descriptors: list[int]) -> None:
    there, back = (Mailbox.attach(*descriptors[i : i + 2]) for i in (0, 2))
    count = 0
    back.send(b"ready")
    while there.wait(spin_us=spin_us):
        messages = there.drain()
        if work == "echo":
            for message in messages:
                back.send(message)
        else:
            count += len(messages)
    back.send(b"%d" % count)


@contextmanager
def beside(work: str, spin_us: int) -> Iterator[tuple[Mailbox, Mailbox]]:
    there, back = Mailbox(), Mailbox()
    descriptors = [*there.descriptors(), *back.descriptors()]
    command = [sys.executable, str(Path(__file__)), "--child", work, str(spin_us)]
    process = subprocess.Popen([*command, *map(str, descriptors)], pass_fds=descriptors)
    try:
        back.wait()
        assert back.drain() == [b"ready"]
        yield there, back
    finally:
        there.close()
        process.wait()


def processes_round_trip(seconds: float, spin_us: int) -> float:
    with beside("echo", spin_us) as (there, back):

        def ask() -> None:
            there.send(MESSAGE)
            back.wait(spin_us=spin_us)
            back.drain()

        return per_call(ask, seconds)


def processes_one_way(seconds: float) -> float:
    with beside("count", 0) as (there, back):
        sent, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            for _ in range(100):
                try:
                    there.send(MESSAGE)
                    sent += 1
                except MailboxFull:
                    time.sleep(0)
        there.close()
        back.wait()
        elapsed = time.perf_counter() - start
        try:
            assert back.drain() == [b"%d" % sent]
        except MailboxClosed:
            raise AssertionError("the child has not counted") from None
        return elapsed / sent


def pipe_child(connection: Connection, work: str) -> None:
    count = 0
    connection.send_bytes(b"ready")
    while message := connection.recv_bytes():
        count += 1
        if work == "echo":
            connection.send_bytes(message)
    connection.send_bytes(b"%d" % count)


@contextmanager
def beside_pipe(work: str) -> Iterator[Connection]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=pipe_child, args=(theirs, work))
    process.start()
    try:
        assert ours.recv_bytes() == b"ready"
        yield ours
    finally:
        process.join()


def processes_round_trip_peer(seconds: float) -> float:
    with beside_pipe("echo") as connection:

        def ask() -> None:
            connection.send_bytes(MESSAGE)
            connection.recv_bytes()

        elapsed = per_call(ask, seconds)
        connection.send_bytes(b"")
        connection.recv_bytes()
        return elapsed


def processes_one_way_peer(seconds: float) -> float:
    with beside_pipe("count") as connection:
        sent, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            for _ in range(100):
                connection.send_bytes(MESSAGE)
            sent += 100
        connection.send_bytes(b"")
        assert connection.recv_bytes() == b"%d" % sent
        return (time.perf_counter() - start) / sent


def measure(seconds: float) -> dict[str, dict[str, float]]:
    cases: dict[str, tuple[Turn, Turn]] = {
        "same_thread": same_thread(1),
        "same_thread_burst_64": same_thread(64),
        "thread_asyncio_round_trip": (
            lambda s: thread_and_asyncio(s, 0),
            thread_and_asyncio_peer,
        ),
        "thread_asyncio_round_trip_spin": (
            lambda s: thread_and_asyncio(s, SPIN_US),
            thread_and_asyncio_peer,
        ),
        "process_round_trip": (
            lambda s: processes_round_trip(s, 0),
            processes_round_trip_peer,
        ),
        "process_round_trip_spin": (
            lambda s: processes_round_trip(s, SPIN_US),
            processes_round_trip_peer,
        ),
        "process_one_way": (processes_one_way, processes_one_way_peer),
    }
    figures = {}
    for name, (ring, peer) in cases.items():
        turns = [(ring(seconds / TURNS), peer(seconds / TURNS)) for _ in range(TURNS)]
        mailbox_us, peer_us = (1e6 * statistics.median(side) for side in zip(*turns, strict=True))
        figures[name] = {
            "mailbox_us": round(mailbox_us, 4),
            "peer_us": round(peer_us, 4),
            "messages_per_s": round(1e6 / mailbox_us),
            "ratio": round(peer_us / mailbox_us, 2),
        }
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.6, help="per case and side")
    json_option(parser)
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        work, spin_us, *descriptors = arguments.child
        child(work, int(spin_us), [int(fd) for fd in descriptors])
        return
    figures = measure(arguments.seconds)
    if not write_json(figures, arguments.json):
        return
    print(f"{'case':32}{'mailbox µs':>12}{'peer µs':>10}{'messages/s':>13}{'ratio':>8}")
    for name, row in figures.items():
        print(
            f"{name:32}{row['mailbox_us']:12.3f}{row['peer_us']:10.3f}"
            f"{row['messages_per_s']:13,.0f}{row['ratio']:8.2f}"
        )


if __name__ == "__main__":
    main()
