"""Builds the engine's actors and joins them with queues.

::

    frontends' loops                          engine (a thread, or a process of its own)
    ┌─────────────────────────┐   Submit      ┌───────────────────────────────────────────────┐
    │ Frontend                │ ────────────► │ SchedulerActor (thread)                       │
    │   RequestActor ...      │   Abort       │   Planner ── calls ── KvAllocator             │
    │                         │               │   ModelRunner: launch, wait                   │
    │                         │               └──────┬──────────────────────────▲─────────────┘
    │                         │            TokensOut │                          │ StopMatched
    │                         │               ┌──────▼──────────────────────────┴─────────────┐
    │                         │ ◄──────────── │ DetokenizerActor (Rust thread)                │
    └─────────────────────────┘   Deltas      └───────────────────────────────────────────────┘
"""

from collections.abc import Callable, Sequence
from typing import Self

from pyengine._core import (
    Accountant,
    KvAllocator,
    Mailbox,
    Planner,
    Recorder,
    Timeline,
    Track,
    Vocabulary,
)
from pyengine.actors.actor import ActorRef, logger
from pyengine.actors.detokenizer import DetokenizerActor
from pyengine.actors.nvtx import mark_ranges
from pyengine.actors.scheduler import SchedulerActor
from pyengine.chat.formats import format_of
from pyengine.chat.template_source import TemplateSource
from pyengine.logits_processors import Call, LogitsProcessor, LogitsProcessors, load_processors
from pyengine.model.cache_groups import allocated, snapshot_interval
from pyengine.model.devices import load_runner, settled
from pyengine.model.progress import Progress
from pyengine.model.runner import ModelRunner
from pyengine.model.weights.folder import model_folder
from pyengine.queues import EngineInfo, Queues
from pyengine.settings.config import EngineConfig
from pyengine.telemetry import Totals
from pyengine.tokenizer import Tokenizer

DETOKENIZER_MAILBOX_BYTES = 1 << 22


class EngineActors:
    """The engine's side: runner, Scheduler (with the KV allocator) and Detokenizer, watched as one.

    An actor that dies takes the others down in order, and the queues are closed, which every
    frontend notices. Any thread may call.

    Attributes:
        info: The facts that frontends need.
    """

    def __init__(
        self,
        config: EngineConfig,
        runner: ModelRunner,
        tokenizer: Tokenizer,
        queues: Queues,
        turn_ends: Sequence[int] = (),
        processors: LogitsProcessors | None = None,
    ) -> None:
        """Build them; ``turn_ends`` end an answer beside the tokenizer's own end tokens."""
        self.queues = queues
        self.failure: BaseException | None = None
        self._died: Callable[[BaseException], None] | None = None
        self.info = EngineInfo(
            max_context=runner.info.max_context,
            vocab_size=runner.info.vocab_size,
            num_blocks=runner.num_blocks,
            device=runner.device,
            max_sequences=config.limits.max_sequences,
            max_tokens_per_step=config.limits.max_tokens_per_step,
            notes=dict(runner.notes),
            logits_processors=() if processors is None else processors.names,
            token_bytes=runner.info.block_bytes // runner.info.block_size,
            block_size=runner.info.block_size,
            overlap=runner.overlap,
        )
        scheduler_ref = ActorRef("scheduler", queues.scheduler)
        frontends = tuple(
            ActorRef(f"frontend-{index}", mailbox) for index, mailbox in enumerate(queues.frontends)
        )
        self.detokenizer = DetokenizerActor(
            Mailbox(DETOKENIZER_MAILBOX_BYTES),
            Vocabulary.from_tokenizer_json(tokenizer.tokenizer_json),
            scheduler_ref,
            frontends,
            queues.recorder.timeline(Track.DETOKENIZER),
        )
        timeline = queues.recorder.timeline(Track.SCHEDULER)
        self._accountant = Accountant(queues.recorder)
        self._span_cost_ns = Recorder.cost_ns()
        groups = allocated(runner.info.cache_groups)
        allocator = KvAllocator(runner.num_blocks, config.block_size, config.prefix_cache, groups)
        planner = _planner(config, runner, allocator, self.detokenizer.ref.mailbox, timeline)
        _set_grammars(planner, config, runner, tokenizer, turn_ends, queues.scheduler)
        _set_speculation(planner, config, runner)
        self.scheduler = SchedulerActor(
            queues.scheduler,
            runner,
            planner,
            allocator,
            frontends,
            self.detokenizer.ref,
            self._on_failure,
            timeline,
            self.telemetry,
            queues.heartbeat,
            processors,
            adapter_bytes=config.adapter_memory_mib << 20,
        )
        if config.nvtx:
            mark_ranges(self.scheduler)

    @classmethod
    def load(
        cls,
        config: EngineConfig,
        queues: Queues,
        progress: Progress | None = None,
        processors: Sequence[LogitsProcessor | Call] = (),
    ) -> Self:
        """Load the model and build the actors. Slow: minutes for large weights.

        ``processors`` are logits processors beside those that ``config`` names.

        Raises:
            ModelLoadError: The model cannot be had or read.
            ConfigError: The configuration does not fit it.
        """
        folder = model_folder(config.model)
        tokenizer = Tokenizer.from_folder(folder)
        template = TemplateSource.read(folder)
        form = format_of(None if template is None else template.for_tools, config.chat_format)
        ends = tokenizer.token_ids(form.stop_tokens) if form else ()
        calls = load_processors(config.logits_processors, processors)
        config = settled(config)
        runner = load_runner(config, progress)
        try:
            return cls(config, runner, tokenizer, queues, ends, LogitsProcessors(calls))
        except BaseException:
            runner.close()
            raise

    def start(
        self,
        died: Callable[[BaseException], None],
        crashed: Callable[[BaseException], None] | None = None,
    ) -> None:
        """Start the actors, last receiver first.

        Args:
            died: Called once, on the thread of an actor that died, with what killed it.
            crashed: The same, but before anything was closed; may end the process and so leave
                the queues to another engine.
        """
        self._died = died
        self._accountant.start()
        self.scheduler.on_crash = crashed
        self.detokenizer.start()
        self.scheduler.start()

    def close(self, timeout: float | None = 10.0) -> None:
        """End what runs, stop the actors in the order of the data, close the queues. Idempotent."""
        self.scheduler.stop()
        self.scheduler.join(timeout)
        self.detokenizer.join(timeout)
        self._accountant.stop()
        self.queues.close()

    def telemetry(self) -> Totals:
        """Time of each stage since the actors were made. Any thread."""
        return Totals.of(self._accountant, self._span_cost_ns)

    def _on_failure(self, name: str, error: BaseException) -> None:
        """An actor died (on its thread): close the queues, which the frontends notice."""
        logger.error("the %s actor died; the engine stops", name)
        self.failure = error
        self.detokenizer.join(1.0)
        self.queues.close()
        if self._died is not None:
            self._died(error)


def _planner(
    config: EngineConfig,
    runner: ModelRunner,
    allocator: KvAllocator,
    detokenizer: Mailbox,
    timeline: Timeline,
) -> Planner:
    """The Planner of the steps of ``runner`` over the blocks of ``allocator``."""
    limits = config.limits
    return Planner(
        allocator,
        runner.layout,
        detokenizer,
        max_sequences=limits.max_sequences,
        max_tokens_per_step=limits.max_tokens_per_step,
        max_context=runner.info.max_context,
        max_waiting=config.max_waiting,
        prefill_chunk=config.prefill_chunk or 0,
        prefill_beside_decodes=(
            config.prefill_beside_decodes or config.device_spec.prefill_beside_decodes
        ),
        short_context=runner.info.short_context or 0,
        snapshot_interval=snapshot_interval(
            runner.info.cache_groups, config.block_size, config.snapshot_interval
        ),
        timeline=timeline,
    )


def _set_grammars(
    planner: Planner,
    config: EngineConfig,
    runner: ModelRunner,
    tokenizer: Tokenizer,
    turn_ends: Sequence[int],
    scheduler: Mailbox,
) -> None:
    """Start the compiler's threads, which send their results to ``scheduler``."""
    # A grammar must allow the tokens that end a turn where the answer may end, or a model
    # that was taught to end with them could not end at all.
    ends = sorted({*tokenizer.eos_token_ids, *turn_ends})
    if not ends:
        return  # as bodies that give vectors are: an answer under a grammar could not end
    planner.set_grammars(
        tokenizer.tokenizer_json,
        ends,
        runner.info.vocab_size,
        scheduler,
        timeout_s=config.grammar_timeout_s,
        cache_bytes=config.grammar_cache_mib << 20,
    )


def _set_speculation(planner: Planner, config: EngineConfig, runner: ModelRunner) -> None:
    """Set the draft token sources, if there are any."""
    if config.max_draft and config.proposers:
        planner.set_speculation(
            list(config.proposers),
            max_draft=config.max_draft,
            # Where drafts of the simulated device take no time, all are worth it.
            adaptive=config._adaptive_drafts
            and (config.simulated_acceptance == 0 or config.simulated_draft_ms > 0),
        )
