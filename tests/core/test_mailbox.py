"""The mailbox between threads, asyncio and processes, and what is left when one is killed."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pyengine._core import Mailbox, MailboxClosed, MailboxFull

ROOT = Path(__file__).parents[2]


def send_all(mailbox: Mailbox, messages: list[bytes]) -> None:
    for message in messages:
        while True:
            try:
                mailbox.send(message)
                break
            except MailboxFull:
                os.sched_yield()


def receive(mailbox: Mailbox, count: int) -> list[bytes]:
    messages: list[bytes] = []
    while len(messages) < count:
        assert mailbox.wait(60)
        messages += mailbox.drain()
    return messages


@contextmanager
def child(code: str, *mailboxes: Mailbox) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has ``mailboxes`` as the list ``boxes``. Killed at the end."""
    descriptors = [fd for mailbox in mailboxes for fd in mailbox.descriptors()]
    prologue = (
        "import os, sys; from pyengine._core import Mailbox, MailboxClosed, MailboxFull\n"
        "fds = [int(fd) for fd in sys.argv[1:]]\n"
        "boxes = [Mailbox.attach(*pair) for pair in zip(fds[::2], fds[1::2])]\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", prologue + code, *map(str, descriptors)],
        pass_fds=descriptors,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_messages_come_in_order_and_whole() -> None:
    mailbox = Mailbox(5000)
    assert mailbox.drain() == []
    sent = [b"", b"a", bytes(range(256)) * 4]
    for message in sent:
        mailbox.send(message)
    assert mailbox.used == 64 + 64 + 1024
    assert mailbox.drain(limit=2) == sent[:2]
    assert mailbox.drain() == sent[2:]
    assert mailbox.used == 0


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"abcd")[1:3], b"bc"),
        (array("I", [1, 2]), array("I", [1, 2]).tobytes()),
        (bytearray(), b""),
    ],
)
def test_any_contiguous_buffer_is_a_message(
    message: bytearray | memoryview, expected: bytes
) -> None:
    mailbox = Mailbox()
    mailbox.send(message)
    assert mailbox.drain() == [expected]


def test_wrong_uses_are_refused() -> None:
    mailbox = Mailbox(4096)
    with pytest.raises(BufferError):
        mailbox.send(memoryview(b"abcd")[::2])
    with pytest.raises(TypeError):
        mailbox.send("text")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="2049 bytes is larger"):
        mailbox.send(bytes(2049))
    for timeout in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            mailbox.wait(timeout)
    for capacity in (0, (1 << 30) + 1):
        with pytest.raises(ValueError, match="capacity"):
            Mailbox(capacity)
    assert mailbox.used == 0


def test_full_means_that_the_sender_keeps_the_message() -> None:
    mailbox = Mailbox(4096)
    mailbox.send(bytes(2048))
    mailbox.send(bytes(2000))
    with pytest.raises(MailboxFull, match="64 bytes are needed, 0 are free"):
        mailbox.send(b"x")
    assert len(mailbox.drain(limit=1)) == 1
    mailbox.send(b"x")
    assert mailbox.drain()[1:] == [b"x"]


def test_close_delivers_what_is_left() -> None:
    mailbox = Mailbox()
    mailbox.send(b"last")
    mailbox.close()
    mailbox.close()
    assert mailbox.closed
    with pytest.raises(MailboxClosed):
        mailbox.send(b"late")
    assert mailbox.wait()
    assert mailbox.drain() == [b"last"]
    assert mailbox.wait() is False
    assert mailbox.arm() is False
    with pytest.raises(MailboxClosed):
        mailbox.drain()


def test_attach_takes_only_a_mailbox(tmp_path: Path) -> None:
    mailbox = Mailbox()
    memory, event = mailbox.descriptors()
    with (tmp_path / "file").open("w+b") as file:
        file.truncate(1 << 20)
        for pair in [(file.fileno(), event), (memory, file.fileno()), (event, memory)]:
            with pytest.raises(ValueError, match="descriptor"):
                Mailbox.attach(*pair)
    with pytest.raises(OSError, match="Bad file descriptor"):
        Mailbox.attach(memory, 1 << 20)
    twin = Mailbox.attach(memory, event)
    del mailbox
    twin.send(b"still there")
    assert twin.drain() == [b"still there"]


def test_descriptors_and_memory_are_given_back() -> None:
    def maps() -> int:
        return Path("/proc/self/maps").read_text().count("pyengine-mailbox")

    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors(), maps()
    for _ in range(20):
        mailbox = Mailbox()
        mailbox.arm()
        assert maps() > before[1]
        del mailbox
    assert (descriptors(), maps()) == before


def test_many_threads_lose_nothing() -> None:
    mailbox = Mailbox(4096)
    sent = [[b"%d %d" % (writer, n) + b"." * (n % 300) for n in range(1500)] for writer in range(4)]
    threads = [threading.Thread(target=send_all, args=(mailbox, messages)) for messages in sent]
    for thread in threads:
        thread.start()
    received = receive(mailbox, sum(map(len, sent)))
    for thread in threads:
        thread.join()
    for writer, messages in enumerate(sent):
        assert [m for m in received if m.startswith(b"%d " % writer)] == messages
    assert (len(received), mailbox.used) == (6000, 0)


def test_wait_releases_the_gil_and_ends_on_close() -> None:
    mailbox = Mailbox()
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(mailbox.wait(60)))
    thread.start()
    mailbox.close()
    thread.join()
    assert answers == [False]


def test_wait_runs_signal_handlers() -> None:
    mailbox = Mailbox()

    def interrupt(_signal: int, _frame: object) -> None:
        raise InterruptedError

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        # Again and again: one alarm could come before the sleep has begun.
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        with pytest.raises(InterruptedError):
            mailbox.wait()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


class Inbox:
    """A mailbox on an asyncio loop: drain, then arm, until arm is True."""

    def __init__(self, mailbox: Mailbox) -> None:
        self.mailbox = mailbox
        self.messages: asyncio.Queue[bytes | None] = asyncio.Queue()
        asyncio.get_running_loop().add_reader(mailbox.fileno(), self.on_readable)
        self.on_readable()

    def on_readable(self) -> None:
        try:
            while True:
                for message in self.mailbox.drain():
                    self.messages.put_nowait(message)
                if self.mailbox.arm():
                    return
        except MailboxClosed:
            asyncio.get_running_loop().remove_reader(self.mailbox.fileno())
            self.messages.put_nowait(None)


async def test_asyncio_gets_every_message_from_threads_and_the_close() -> None:
    inbox = Inbox(Mailbox(4096))
    sent = [b"%d" % n for n in range(3000)]

    def write() -> None:
        send_all(inbox.mailbox, sent)
        inbox.mailbox.close()

    thread = threading.Thread(target=write)
    thread.start()
    received = [await inbox.messages.get() for _ in range(len(sent) + 1)]
    thread.join()
    assert received == [*sent, None]


async def test_asyncio_sleeps_between_messages() -> None:
    inbox, outbox = Inbox(Mailbox()), Mailbox()

    def echo() -> None:
        while outbox.wait(60):
            send_all(inbox.mailbox, outbox.drain())

    thread = threading.Thread(target=echo)
    thread.start()
    for n in range(300):
        outbox.send(b"%d" % n)
        assert await inbox.messages.get() == b"%d" % n
    outbox.close()
    thread.join()
    inbox.mailbox.close()
    assert await inbox.messages.get() is None


async def test_a_child_answers_over_inherited_descriptors() -> None:
    there, back = Mailbox(4096), Mailbox(4096)
    code = """
there, back = boxes
while there.wait(60):
    for message in there.drain():
        while True:
            try:
                back.send(message[::-1])
                break
            except MailboxFull:
                os.sched_yield()
back.close()
"""
    with child(code, there, back) as process:
        inbox = Inbox(back)
        sent = [b"%d." % n * (n % 50 + 1) for n in range(3000)]
        writing = asyncio.to_thread(send_all, there, sent)
        reading = asyncio.gather(*(inbox.messages.get() for _ in sent))
        await writing
        assert await reading == [message[::-1] for message in sent]
        there.close()
        assert await inbox.messages.get() is None
        assert await asyncio.to_thread(process.wait) == 0


def record(writer: int, number: int, size: int) -> bytes:
    return b"%d %d " % (writer, number) + b"%d" % (number % 10) * size


def test_a_writer_killed_in_mid_stream_does_not_stop_the_others() -> None:
    """Long messages, so that a kill usually hits a copy: reserved, and never published."""
    mailbox = Mailbox(1 << 20)
    code = """
n = 0
while True:
    try:
        boxes[0].send(b"1 %d " % n + b"%d" % (n % 10) * 500_000)
        n += 1
    except MailboxFull:
        pass
"""
    for _ in range(5):
        with child(code, mailbox) as process:
            killed = receive(mailbox, 20)
            process.kill()
            process.wait()
            # The ring may be full of what the dead one left: a writer goes on when the reader does.
            sent = [record(0, n, 1000) for n in range(500)]
            thread = threading.Thread(target=send_all, args=(mailbox, sent))
            thread.start()
            own: list[bytes] = []
            while len(own) < len(sent):
                assert mailbox.wait(60)
                for message in mailbox.drain():
                    (own if message.startswith(b"0 ") else killed).append(message)
            thread.join()
        assert own == sent
        # None of the dead one's lost, torn or twice.
        for n, message in enumerate(killed):
            assert message == record(1, n, 500_000)
        assert (mailbox.drain(), mailbox.used) == ([], 0)


def test_a_killed_reader_is_noticed_and_can_be_replaced() -> None:
    mailbox, ready = Mailbox(4096), Mailbox()
    code = """
there, ready = boxes
assert there.wait() and there.drain() == [b"hello"]
ready.send(b"")
there.wait()
"""
    mailbox.send(b"hello")
    with child(code, mailbox, ready) as process:
        receive(ready, 1)
        for receiving in (mailbox.drain, mailbox.arm, mailbox.wait):
            with pytest.raises(ValueError, match=f"process {process.pid}"):
                receiving()
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        for _ in range(4096 // 64):
            mailbox.send(b"x")
        with pytest.raises(MailboxClosed):
            mailbox.send(b"x")
        assert not mailbox.closed
    assert mailbox.drain() == [b"x"] * 64


def test_nothing_is_left_of_a_killed_owner() -> None:
    """The ring of a killed process never had a name."""
    report = Mailbox()
    code = """
box = Mailbox(1 << 20)
box.send(b"x" * 1000)
boxes[0].send(os.readlink(f"/proc/self/fd/{box.descriptors()[0]}").encode())
box.wait(0)
import time
time.sleep(600)
"""
    with child(code, report) as process:
        (link,) = receive(report, 1)
        process.kill()
        process.wait()
    assert b"pyengine-mailbox (deleted)" in link


def test_a_forked_child_writes_and_does_not_read() -> None:
    """Forked in a process that has no other thread."""
    code = """
box = Mailbox()
assert box.drain() == []
pid = os.fork()
if pid == 0:
    for method in (box.drain, box.arm, box.wait):
        try:
            method()
        except ValueError:
            box.send(method.__name__.encode())
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert box.drain() == [b"drain", b"arm", b"wait"]
"""
    with child(code) as process:
        assert process.wait() == 0
