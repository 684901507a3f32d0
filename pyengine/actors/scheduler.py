"""The Scheduler actor: the engine's step, on a thread of its own.

One step, drawn over time with a device that runs beside the CPU (``overlap`` 1)::

    CPU     drain plan launch        commit drain plan launch        commit
              N+1   N+1                N           N+2   N+2           N+1
    device  ├──────────── step N ──────────┤├──────── step N+1 ────────────┤

With ``overlap`` 0 (the CPU runner) the launch is the model step itself and its commit follows.

Every part of the loop is a span of one timeline: those of drain, plan and commit are recorded by
the planner, the others here.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from pyengine._core import (
    KvAllocator,
    Mailbox,
    MailboxClosed,
    MailboxFull,
    Planner,
    Stage,
    Timeline,
    Track,
)
from pyengine.actors.actor import ActorRef, FailureHandler, ThreadActor, logger
from pyengine.actors.heartbeat import Heartbeat
from pyengine.errors import AdapterError, EngineDeadError
from pyengine.logits_processors import LogitsProcessors
from pyengine.messages import (
    AdapterLoaded,
    LoadAdapter,
    Report,
    ReportRequest,
    ResetDone,
    ResetRequest,
    decode,
    encode_adapter_loaded,
    encode_report,
    encode_reset_done,
)
from pyengine.model.adapters.loaded import LoadedAdapters
from pyengine.model.batch import StepBuffers
from pyengine.model.runner import ModelRunner, StepHandle
from pyengine.telemetry import HistogramTotal, Totals

BACKPRESSURE_WAIT_S = 0.001
# How often idle time is reported, so that the stats of an idle engine stay current.
IDLE_WAIT_S = 1.0
# An idle scheduler checks the KV allocator after so long, so that the next request of a client that
# sends one after the other does not wait for it.
CHECK_AFTER_S = 0.05


@dataclass(slots=True)
class StepInFlight:
    """A step that was planned: running on the device, or failed.

    Attributes:
        number: The planner's number for it.
        buffers: What it reads.
        handle: The device's end of it; None if the launch failed.
        error: Why it failed.
        sampled: Whether its tokens are being chosen: at launch, or once its masks and penalties are
            filled.
    """

    number: int
    buffers: StepBuffers
    handle: StepHandle | None = None
    error: Exception | None = None
    sampled: bool = False


class SchedulerActor(ThreadActor):
    """Owns the planner, the KV allocator and the model runner. All its methods but ``start``,
    ``stop`` and ``join`` run on its thread.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        runner: ModelRunner,
        planner: Planner,
        allocator: KvAllocator,
        frontends: tuple[ActorRef, ...],
        detokenizer: ActorRef,
        on_failure: FailureHandler,
        timeline: Timeline,
        telemetry: Callable[[], Totals],
        heartbeat: Heartbeat,
        processors: LogitsProcessors | None = None,
        *,
        adapter_bytes: int = 0,
    ) -> None:
        """Not running yet; ``adapter_bytes`` bounds the memory of adapters."""
        super().__init__("scheduler", mailbox, on_failure)
        self.runner = runner
        self.planner = planner
        self.allocator = allocator
        self.frontends = frontends
        self.detokenizer = detokenizer
        self.in_flight: deque[StepInFlight] = deque()
        self.unsent: deque[tuple[int, bytes]] = deque()  # answers, each with its frontend
        self.timeline = timeline
        self.telemetry = telemetry
        self.heartbeat = heartbeat
        self.processors = processors or LogitsProcessors({})
        self.adapters = LoadedAdapters(runner, planner, adapter_bytes)
        self.steps = 0
        self.checked = False  # the allocator, since the last step
        self.kv_check_failures = 0

    def run(self) -> None:
        """Step while there is work, sleep on the mailbox while there is none."""
        mailbox = self.ref.mailbox
        self.timeline.begin()
        try:
            while True:
                self.heartbeat.begin_step()
                if self.step():
                    self.checked = False
                    continue
                if self.planner.has_work or self.unsent:  # the detokenizer or a reader is behind
                    mailbox.wait(BACKPRESSURE_WAIT_S)
                    self.timeline.end_span(Stage.MESSAGE)
                else:
                    self.rest()
        except MailboxClosed:
            while self.in_flight:
                self.commit()
            self.planner.abort_all()
            if not self.stopping:
                raise EngineDeadError("the detokenizer failed, and closed the queues") from None

    def rest(self) -> None:
        """Sleep on the mailbox; check the allocator once each time the scheduler becomes idle."""
        mailbox = self.ref.mailbox
        self.heartbeat.rest()
        if not self.checked and not mailbox.wait(CHECK_AFTER_S):
            self.check_blocks()
            self.checked = True
        mailbox.wait(IDLE_WAIT_S)
        self.timeline.end_span(Stage.IDLE)

    def check_blocks(self) -> None:
        """Log and count it if a KV block is held though no request is left, or an invariant is
        broken: free, cached and held blocks are all blocks, and the prefix tree is sound.
        """
        try:
            self.allocator.check()
            _, _, held = self.allocator.counts()
            if held:
                raise RuntimeError(f"{held} KV blocks are held though no request is left")
        except RuntimeError as error:
            self.kv_check_failures += 1
            logger.error("the KV allocator failed its check: %s", error)

    def step(self) -> bool:
        """Drain, plan and launch a step, commit the oldest, send its tokens; False if there was
        nothing to do.
        """
        self.drain()
        if self.adapters.load_wanted():
            self.drain()
        if self.unsent:
            self.send_answers()
        launched = self.launch()
        if self.in_flight and (not launched or len(self.in_flight) > self.runner.overlap):
            self.commit()
            if not launched:
                # A step that drafts follow waits for these tokens, and the device for that step.
                self.launch()
            launched = True
        self.planner.send()
        # Masks and penalties depend on all tokens before: they are filled in while the device
        # computes the step.
        if self.in_flight:
            self.sample(self.in_flight[-1])
        return launched

    def drain(self) -> None:
        """Let the planner read the mailbox, and answer what is not for it."""
        for message in self.planner.drain(self.ref.mailbox):
            self.answer(message)

    def launch(self) -> bool:
        """Plan a step into a free set of buffers and start it; False if there is none."""
        buffers: StepBuffers = self.runner.buffers()
        if not self.planner.plan(buffers.memory):
            return False
        self.steps += 1
        step = StepInFlight(self.steps, buffers)
        self.in_flight.append(step)
        try:
            step.handle = self.runner.launch(buffers)
        except EngineDeadError:
            raise
        except Exception as error:  # noqa: BLE001 - ends its rows
            step.error = error
        self.timeline.end_span(Stage.LAUNCH)
        if not buffers.late:
            self.sample(step)
        return True

    def sample(self, step: StepInFlight) -> None:
        """Fill masks and penalties of ``step``, if it has any, and let the device sample."""
        if step.sampled or step.handle is None:
            return
        step.sampled = True
        if step.buffers.late:
            self.planner.fill_late(step.buffers.memory)
        step.buffers.processing = (
            self.processors.take_step(self.planner) if step.buffers.num_processed_rows else None
        )
        try:
            step.handle.sample()
        except EngineDeadError:
            raise
        except Exception as error:  # noqa: BLE001 - as at the launch
            step.handle, step.error = None, error
        self.timeline.end_span(Stage.SAMPLE)

    def commit(self) -> None:
        """Wait for the oldest step in flight and hand its tokens to the planner."""
        step = self.in_flight[0]
        self.sample(step)
        self.in_flight.popleft()
        handle, error = step.handle, step.error
        if handle is not None:
            try:
                results = handle.wait()
            except EngineDeadError:
                raise
            except Exception as failure:  # noqa: BLE001 - as at the launch
                error = failure
            else:
                self.timeline.end_span(Stage.COPY_BACK)
                # Before the commit, which says that this step's time on the device is known.
                self.record_device(step.number, handle)
                results.device_times[:] = handle.start_ns, *handle.waited_ns, handle.end_ns
                processing = step.buffers.processing
                self.planner.commit(results.memory, processing.failed if processing else None)
                return
        ended = self.planner.fail_step(f"a model step failed: {_in_a_line(error)}")
        logger.error("a model step failed; %d requests end with it", ended, exc_info=error)

    def record_device(self, number: int, handle: StepHandle) -> None:
        """Record when the device worked on step ``number``: in two parts if masks came late."""
        begun, (forwarded, sampling), ended = handle.start_ns, handle.waited_ns, handle.end_ns
        if forwarded == sampling:
            self.timeline.record(Track.DEVICE, Stage.DEVICE, begun, ended, number)
        else:
            self.timeline.record(Track.DEVICE, Stage.DEVICE, begun, forwarded, number)
            self.timeline.record(Track.DEVICE, Stage.SAMPLE, sampling, ended, number)

    def answer(self, message: bytes) -> None:
        """Answer a message that is not for the planner."""
        try:
            request = decode(message)
        except msgspec.DecodeError:
            # Malformed, or a Submit with a known key: after a restart of the engine a frontend
            # sends a request again if it does not know whether the first one arrived.
            logger.warning("the scheduler dropped a message of %d bytes", len(message))
            return
        if isinstance(request, ReportRequest):
            stats = self.block_stats() | self.planner.stats()
            histograms = {
                name: HistogramTotal(*histogram)
                for name, histogram in self.planner.histograms().items()
            }
            experts = self.runner.expert_load()
            recorded = self.planner.take_recorded() if request.recorded else b""
            report = Report(request.ticket, stats, histograms, self.telemetry(), experts, recorded)
            self.unsent.append((request.frontend, encode_report(report)))
        elif isinstance(request, ResetRequest):
            done = ResetDone(request.ticket, self.allocator.reset_prefix_cache())
            self.unsent.append((request.frontend, encode_reset_done(done)))
        elif isinstance(request, LoadAdapter):
            loaded = AdapterLoaded(request.ticket, self.load_adapter(request))
            self.unsent.append((request.frontend, encode_adapter_loaded(loaded)))
        self.send_answers()

    def load_adapter(self, request: LoadAdapter) -> str | None:
        """Load an adapter; returns why it cannot be, or None."""
        try:
            self.adapters.load(request.digest, request.folder)
        except AdapterError as error:
            return error.message
        return None

    def block_stats(self) -> dict[str, int]:
        """``free``, ``cached``, ``held`` and ``num_blocks``, of which the first three sum to the
        last, the bytes of each, snapshots of states and their bytes, and how often the check of
        an idle scheduler failed.
        """
        free, cached, held = self.allocator.counts()
        info, snapshots = self.runner.info, self.allocator.num_snapshots()
        return {
            "page_bytes": info.block_bytes,
            "free": free,
            "cached": cached,
            "held": held,
            "num_blocks": self.allocator.num_blocks,
            "snapshots": snapshots,
            "snapshot_bytes": snapshots * info.state_pages * info.block_bytes,
            "kv_check_failures": self.kv_check_failures,
        }

    def send_answers(self) -> None:
        """Send what is to be sent; what finds a full mailbox is kept for the next step."""
        for _ in range(len(self.unsent)):
            frontend, answer = self.unsent.popleft()
            try:
                self.frontends[frontend].send(answer)
            except MailboxFull:
                self.unsent.append((frontend, answer))
            except MailboxClosed:
                logger.debug("frontend %d is closed; its answer is dropped", frontend)

    def cleanup(self) -> None:
        """Close the device and the detokenizer's mailbox behind the last tokens."""
        self.detokenizer.mailbox.close()
        self.runner.close()


def _in_a_line(error: Exception | None) -> str:
    """A short description of the failure for clients; the log has the whole of it."""
    text = str(error).partition("\n")[0][:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
