"""The draft model on the CPU: fills in the drafts of a step before the model computes it.

::

    step     a a a D D │ b │ c D     D: drafts to be filled in; b has none
    pass 1   x x a a a │ c           what the cache lacks (x) and what is known; a draft for a and c
    pass 2   D                       the second draft for a

Drafts are sampled by each row's own rules, with the noise of its own seed and positions: where the
two models agree on what is likely they mostly choose the same token (Daliri, Musco and Suresh,
"Coupling without Communication and Drafter-Invariant Speculative Decoding", 2024).

Its keys and values lie in the same pages as the model's, in a cache of its own. They are computed
when a sequence is drafted for, so that an engine in which drafts do not pay does without.
"""

from pyengine._core import CpuKernels, DraftPasses, StepLayout
from pyengine.model.batch import StepBuffers
from pyengine.model.cache_groups import allocated, tables_of
from pyengine.model.cpu.model import CpuModel
from pyengine.model.spec import ModelSpec


class DraftModel:
    """A small model that drafts for the steps of a larger one. One thread at a time."""

    def __init__(
        self, spec: ModelSpec, vocab_size: int, layout: StepLayout, kernels: CpuKernels
    ) -> None:
        """Load the weights and make the cache.

        Args:
            spec: The draft model, with the pages of the model that it drafts for.
            vocab_size: The vocabulary size of the model that it drafts for.
            layout: Of that model's steps.
            kernels: The kernels and their threads.

        Raises:
            ModelLoadError: The draft model cannot be loaded; says why.
        """
        lengths = {name: length for name, (_, _, length) in layout.fields().items()}
        rows = lengths["sample_rows"]
        passes = StepLayout(
            max(lengths["token_ids"], rows),
            rows,
            lengths["page_indices"],
            vocab_size=spec.info.vocab_size,
            tables=tables_of(spec.info.cache_groups),
        )
        self._model = CpuModel(spec, passes, kernels)
        self._passes = DraftPasses(
            layout,
            passes,
            num_blocks=spec.num_blocks,
            block_size=spec.info.block_size,
            vocab_size=min(vocab_size, spec.info.vocab_size),
            groups=allocated(spec.info.cache_groups),
            spare_blocks=spec.spare_blocks,
        )

    def fill(self, step: StepBuffers) -> None:
        """Fill in the drafts that ``step`` leaves open; all its other tokens are known."""
        model = self._model
        sampler = model.sampler
        self._passes.fill(
            step.memory,
            model.buffers.memory,
            forward=model.programs[0],
            logits=model.programs[1],
            rules=sampler.rules,
            logits_rows=model.logits_rows.kernel,
            chosen=sampler.tokens,
        )
