"""Does paged decode attention on the CPU run at the speed of memory?

One layer, one query token per sequence, float32, 8 query heads over 2 key heads of 64, in blocks
of 16 scattered over the cache. Beside it: torch's ``scaled_dot_product_attention`` over keys and
values gathered from the blocks (with and without the gathering), and the floor: the cache read
once at the bandwidth of a copy. ``--json -`` prints the figures as JSON.
"""

import argparse
import json
import math
import random
from typing import Any

import numpy as np
import torch

from benches.medians import median_us
from pyengine._core import CpuKernels, CpuProgram, CpuStep
from pyengine.model.cpu.layers import workspace
from pyengine.model.cpu.pool import cache_array
from pyengine.model.dtypes import cpu_tensor

HEADS, KV_HEADS, DIM, BLOCK = 8, 2, 64, 16
CASES = [(1, 512), (16, 512), (64, 512), (1, 2048), (16, 2048), (64, 2048)]
SECONDS_PER_FIGURE = 0.4


def read_bandwidth() -> float:
    """Bytes per microsecond that a copy much larger than the caches reads."""
    source = torch.ones(64 << 20, dtype=torch.uint8)
    target = torch.empty_like(source)
    return source.nbytes / median_us(lambda: target.copy_(source), SECONDS_PER_FIGURE)


def case(kernels: CpuKernels, sequences: int, context: int, bandwidth: float) -> dict[str, Any]:
    """The figures of one batch and context."""
    pages = math.ceil(context / BLOCK)
    blocks = list(range(sequences * pages))
    random.Random(0).shuffle(blocks)
    table = torch.tensor(blocks).view(sequences, pages)
    kind = np.dtype(np.float32)
    caches = [
        cache_array(len(blocks), KV_HEADS, *block, dtype=kind)
        for block in ((DIM, BLOCK), (BLOCK, DIM))
    ]
    keys, values = (torch.from_numpy(cache).normal_() for cache in caches)
    qkv = workspace(sequences, (HEADS + 2 * KV_HEADS) * DIM, kind)
    queries = torch.from_numpy(qkv.tensor).normal_()
    out = workspace(sequences, HEADS * DIM, kind)
    last = table[:, (context - 1) // BLOCK].numpy()
    step = CpuStep(
        np.array([sequences, sequences], np.int64),
        np.full(sequences, context - 1, np.int32),
        (last * BLOCK + (context - 1) % BLOCK).astype(np.int32),
        np.arange(sequences + 1, dtype=np.int32),
        np.full(sequences, context, np.int32),
        np.arange(0, (sequences + 1) * pages, pages, dtype=np.int32),
        np.array(blocks, np.int32),
    )
    # No rotation, so that torch sees the same queries.
    angles = torch.cat((torch.ones(context, DIM // 2), torch.zeros(context, DIM // 2)), 1)
    arguments = cpu_tensor(angles.numpy()), cpu_tensor(caches[0]), cpu_tensor(caches[1])

    program = CpuProgram(kernels)
    program.attend(step, qkv.kernel, *arguments, out.kernel, HEADS, DIM**-0.5)

    def ours() -> None:
        program.run(0)

    def gather() -> tuple[torch.Tensor, torch.Tensor]:
        k = keys[table].permute(0, 2, 1, 4, 3).reshape(sequences, KV_HEADS, -1, DIM)
        v = values[table].permute(0, 2, 1, 3, 4).reshape(sequences, KV_HEADS, -1, DIM)
        return k[:, :, :context], v[:, :, :context]

    query = queries[:, : HEADS * DIM].view(sequences, HEADS, 1, DIM)

    def attend(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(query, k, v, enable_gqa=True)

    ours()
    k, v = gather()
    attended = torch.from_numpy(out.tensor).view_as(query)
    torch.testing.assert_close(attended, attend(k, v), rtol=1e-3, atol=1e-4)
    figures = {
        "attend_us": median_us(ours, SECONDS_PER_FIGURE),
        "torch_sdpa_us": median_us(lambda: attend(k, v), SECONDS_PER_FIGURE),
        "torch_gather_and_sdpa_us": median_us(lambda: attend(*gather()), SECONDS_PER_FIGURE),
        "floor_us": 2 * sequences * context * KV_HEADS * DIM * 4 / bandwidth,
    }
    return {
        "sequences": sequences,
        "context": context,
        **{name: round(value, 1) for name, value in figures.items()},
        "over_floor": round(figures["attend_us"] / figures["floor_us"], 2),
        "over_torch_sdpa": round(figures["attend_us"] / figures["torch_sdpa_us"], 3),
        "over_torch": round(figures["attend_us"] / figures["torch_gather_and_sdpa_us"], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", metavar="-", choices=["-"], help="print JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    kernels = CpuKernels(options.threads)
    with torch.inference_mode():
        bandwidth = read_bandwidth()
        results = [case(kernels, *shape, bandwidth) for shape in CASES]
    report = {
        "threads": options.threads,
        "copy_gb_per_s": round(bandwidth / 1e3, 2),
        "cases": results,
    }
    if options.json:
        print(json.dumps(report))
        return
    print(f"{options.threads} threads, a copy reads {report['copy_gb_per_s']} GB/s")
    print("  seqs  context    ours us  torch sdpa us  with gather us   floor us  x floor  x torch")
    for r in results:
        print(
            f"{r['sequences']:6} {r['context']:8} {r['attend_us']:10.0f} "
            f"{r['torch_sdpa_us']:14.0f} {r['torch_gather_and_sdpa_us']:15.0f} "
            f"{r['floor_us']:10.0f} {r['over_floor']:8.2f} {r['over_torch']:8.3f}"
        )


if __name__ == "__main__":
    main()
