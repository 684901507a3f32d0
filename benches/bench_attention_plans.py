"""Price of planning FlashInfer's attention for a step, beside plans that its wrappers make.

A step of each size is planned as the engine does it: what rows share is looked for, page tables are
made, and the work is divided, by the compiled planner itself or by FlashInfer's Python around it.
The installed FlashInfer's Python is what runs; its compiled modules need a GPU, so their planner,
which takes as long either way, takes no time here, and copies to the device are copies in memory.
Decodes have a graph up to 512 rows. Figures are medians in microseconds, the ratio is of turns that
alternate.

    pip install --no-deps flashinfer-python==0.7.2 apache-tvm-ffi einops tabulate nvidia-ml-py click
    python -m benches.bench_attention_plans [--json PATH]      (- is standard output)
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from benches.figures import json_option, write_json
from benches.gpu.steps import add_prompt, fill
from benches.medians import median_us
from benches.paired import ratio_of, turns
from pyengine._core import StepLayout
from pyengine.model.architectures.parts import LayerAttention
from pyengine.model.batch import StepBuffers
from pyengine.model.torch.attention.flashinfer import wrappers
from pyengine.model.torch.attention.flashinfer.backend import FlashInferAttention
from pyengine.model.torch.attention.flashinfer.library import Library
from pyengine.model.torch.attention.flashinfer.workspace import GRAPH_TOKENS
from pyengine.model.torch.attention.spec import AttentionSpec
from pyengine.model.torch.device.device_step import DeviceStep

ROWS = (1, 64, 256, 1024)
CONTEXT, BLOCK, PROMPT = 512, 16, 600
ROUNDS, SECONDS = 8, 0.05
NEEDED = ("flashinfer", "tvm_ffi")


@contextmanager
def flashinfer_without_a_gpu() -> Iterator[Library]:
    """The installed FlashInfer, whose modules plan in no time, and compute nothing."""
    import flashinfer
    from flashinfer import decode, prefill

    module = SimpleNamespace(
        plan=lambda *_: [0] * 15, run=lambda *_: None, paged_run=lambda *_: None
    )
    empty = torch.empty
    with ExitStack() as stack:
        for place, name in (
            (decode, "get_batch_prefill_module"),
            (decode, "get_batch_decode_module"),
            (prefill, "get_batch_prefill_module"),
        ):
            stack.enter_context(patch.object(place, name, lambda *_: module))
        stack.enter_context(
            patch.object(prefill, "determine_attention_backend", lambda *_, **__: "fa3")
        )
        # No memory is pinned without a GPU.
        stack.enter_context(
            patch.object(torch, "empty", lambda *a, pin_memory=False, **k: empty(*a, **k))
        )
        yield Library(
            decode=flashinfer.BatchDecodeWithPagedKVCacheWrapper,
            prefill=flashinfer.BatchPrefillWithPagedKVCacheWrapper,
            merge=lambda *_: None,
            event=lambda: SimpleNamespace(record=lambda: None, synchronize=lambda: None),
            copy=torch.Tensor.copy_,
            put=lambda *_: None,
            flash3=True,
        )


class Planning:
    """A backend of Llama-3-8B's heads, and a step that it plans again and again."""

    def __init__(self, library: Library, rows: int, prompt: int, *, native: bool) -> None:
        """Of ``rows`` decodes, beside a prompt of so many tokens; 0 is none."""
        tokens, pages = rows + prompt, (rows + 1) * (-(-(CONTEXT + PROMPT) // BLOCK) + 1)
        each = rows + (prompt > 0)
        spec = AttentionSpec(
            num_heads=32, num_kv_heads=8, head_dim=128, dtype="bfloat16", kv_dtype="bfloat16",
            block_size=BLOCK, max_rows=each, max_tokens=tokens, max_pages=pages,
            max_context=CONTEXT + PROMPT,
        )  # fmt: skip
        layout = StepLayout(tokens, each, pages, max_draft=1, vocab_size=1)
        host = StepBuffers(layout)
        fill(host, rows, 1, CONTEXT - 1, BLOCK)
        if prompt:
            add_prompt(host, prompt, BLOCK)
        self.step = DeviceStep(layout, torch.device("cpu"), host)
        self._backend = FlashInferAttention(spec, torch.device("cpu"), library)
        self._size = each, tokens
        self._captured = not prompt and tokens <= GRAPH_TOKENS
        with patch.object(wrappers, "native_plan", lambda *_: None) if not native else ExitStack():
            self.plan()
            # The launches of a kind of layers are planned as the first such layer attends.
            self._attend(spec)

    def plan(self) -> None:
        """What the engine does for attention before it launches the step."""
        variant = self._backend.variant(self.step)
        self._backend.plan(self.step, variant, *self._size, captured=self._captured)

    def _attend(self, spec: AttentionSpec) -> None:
        like: dict[str, Any] = {"dtype": torch.bfloat16}
        queries = torch.zeros(self._size[1], spec.num_heads, spec.head_dim, **like)
        cache = torch.zeros(1, BLOCK, spec.num_kv_heads, spec.head_dim, **like)
        layer = LayerAttention(angles=torch.zeros(0, 0).numpy(), scale=spec.head_dim**-0.5)
        with patch("torch.cuda.get_device_capability", lambda *_: (9, 0)):
            self._backend.attend(self.step, queries, cache, cache, queries, self._size[1], layer)


def measured(library: Library, rows: int, prompt: int) -> dict[str, object]:
    """Microseconds of a plan by both, and how many times as fast the native one is."""
    both: list[Callable[[], None]] = [
        Planning(library, rows, prompt, native=native).plan for native in (True, False)
    ]
    times: tuple[list[float], list[float]] = [], []
    for order in turns(ROUNDS):
        for which in order:
            times[which].append(median_us(both[which], SECONDS))
    native, wrapper = (sorted(each)[len(each) // 2] for each in times)
    ratios = [slow / fast for fast, slow in zip(*times, strict=True)]
    return {
        "rows": rows, "prompt": prompt, "native_us": native, "wrapper_us": wrapper,
        "ratio": asdict(ratio_of(ratios)),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    json_option(parser)
    arguments = parser.parse_args()
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        print(
            f"{', '.join(missing)}: not installed, nothing to measure; see --help", file=sys.stderr
        )
        return
    with flashinfer_without_a_gpu() as library:
        found = [measured(library, rows, prompt) for prompt in (0, PROMPT) for rows in ROWS]
    if write_json(found, arguments.json):
        print(f"{'rows':>6} {'prompt':>6} {'native us':>10} {'wrapper us':>10} {'ratio':>6}")
        for each in found:
            ratio: Any = each["ratio"]
            print(
                f"{each['rows']:>6} {each['prompt']:>6} {each['native_us']:>10.1f} "
                f"{each['wrapper_us']:>10.1f} {ratio['value']:>6.2f}"
            )


if __name__ == "__main__":
    main()
