"""Compiles the kernels for a GPU of compute capability 9.0, which takes none, and prints of each
what its code has. A program: Triton is not to interpret here.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from triton import compiler
from triton.backends.compiler import GPUTarget

from pyengine.kernels import (
    activation,
    blocks,
    edit,
    feed,
    gemv,
    head_norm,
    norm,
    rope,
    sampling,
    top_logprobs,
    verify,
)

TYPES = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.int32: "*i32",
    torch.int64: "*i64",
}


def code_of(
    kernel: Any,
    pointers: Mapping[str, torch.dtype],
    constants: Mapping[str, Any],
    floats: tuple[str, ...] = (),
    odd: tuple[str, ...] = (),
    fusion: bool = True,
    warps: int = 4,
) -> str:
    """The PTX of a kernel for tensors that begin where 16 bytes do.

    Args:
        kernel: What triton.jit made.
        pointers: Types of the tensors.
        constants: Values of the constexpr arguments.
        floats: Numbers that are floats.
        odd: Integers that are no multiples of 16; the others are taken as such.
        fusion: Whether multiplications and additions may be fused.
        warps: Of a program.
    """
    types, attributes = {}, {}
    for place, name in enumerate(kernel.arg_names):
        if name in constants:
            types[name] = "constexpr"
        elif name in floats:
            types[name] = "fp32"
        else:
            types[name] = TYPES[pointers[name]] if name in pointers else "i32"
            if name not in odd:
                attributes[(place,)] = [["tt.divisibility", 16]]
    source = compiler.ASTSource(kernel, types, dict(constants), attributes)
    options = {"enable_fp_fusion": fusion, "num_warps": warps}
    compiled = compiler.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    return str(compiled.asm["ptx"])


def widest(code: str, operation: str) -> int:
    """Bytes of the widest access to global memory by a thread."""
    found = re.findall(rf"{operation}\.global(?:\.\w+)*?(?:\.v(\d))?\.b(\d+)", code)
    return max((int(count or 1) * int(bits) // 8 for count, bits in found), default=0)


def exact(code: str) -> bool:
    """Whether every operation rounds on its own, as IEEE has it."""
    return not any(sign in code for sign in ("fma.rn.f32", ".ftz", "div.full", "approx"))


def sampler() -> None:
    """Rows of one program, and of several."""
    numbers = ("logits_ptr", "temperature_ptr", "top_p_ptr", "min_p_ptr", "best_ptr", "time_ptr")
    floats = dict.fromkeys(numbers, torch.float32)
    longs = dict.fromkeys(("header_ptr", "seed_ptr", "position_ptr"), torch.int64)
    block, ways = {"BLOCK": sampling.BLOCK}, {"WAYS": sampling.WAYS}
    for kernel, constants in (
        (sampling.sample_kernel, {"PARTS": 1} | block | ways),
        (sampling.sample_kernel, {"PARTS": 64} | block | ways),
        (sampling.peak_kernel, {"PARTS": 64} | block),
        (sampling.finish_kernel, {"PARTS": 64}),
        (verify.verify_kernel, {"ROWS": verify.ROWS}),
    ):
        ints = {name: torch.int32 for name in kernel.arg_names if name.endswith("_ptr")}
        odd = tuple(name for name in kernel.arg_names if not name.endswith("_ptr"))
        warps = 8 if kernel is sampling.sample_kernel else 4
        code = code_of(kernel, ints | floats | longs, constants, odd=odd, fusion=False, warps=warps)
        print(kernel.__name__, exact(code))


def layers() -> None:
    """Of Llama-3-8B: rows of 4096, a feed-forward layer of 14336, 32 heads of 128 over 8."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        names = ("residual_ptr", "branch_ptr", "weight_ptr", "out_ptr")
        constants = {"HAS_BRANCH": True, "BLOCK": 4096}
        code = code_of(
            norm.add_rms_norm_kernel, dict.fromkeys(names, dtype), constants,
            ("count", "epsilon"), warps=8,
        )  # fmt: skip
        print("add_rms_norm", dtype, widest(code, "ld"), widest(code, "st"))
        names = ("qkv_ptr", "query_weight_ptr", "key_weight_ptr")
        constants = {"DIM": 128, "DIM_BLOCK": 128, "HEADS": 16}
        kernel, floats = head_norm.head_rms_norm_kernel, ("count", "epsilon")
        odd = ("normed_heads",)
        code = code_of(kernel, dict.fromkeys(names, dtype), constants, floats, odd)
        print("head_rms_norm", dtype, widest(code, "ld"), widest(code, "st"))
        names = ("gate_up_ptr", "out_ptr")
        constants = {"BLOCK": activation.BLOCK}
        code = code_of(activation.silu_mul_kernel, dict.fromkeys(names, dtype), constants)
        print("silu_mul", dtype, widest(code, "ld"), widest(code, "st"))
        for cache in (dtype, torch.float8_e4m3fn):
            types = {
                "qkv_ptr": dtype,
                "angles_ptr": torch.float32,
                "positions_ptr": torch.int32,
                "slots_ptr": torch.int32,
                "keys_ptr": cache,
                "values_ptr": cache,
            }
            constants = {"HALF": 64, "HALF_BLOCK": 64, "HEADS": 16}
            code = code_of(rope.rope_append_kernel, types, constants, odd=("num_kv_heads",))
            print("rope_append", dtype, cache, widest(code, "ld"), widest(code, "st"))
    types = dict.fromkeys(feed.feed_kernel.arg_names[:5], torch.int32) | {"header_ptr": torch.int64}
    code_of(feed.feed_kernel, types, {"NUM_FEEDS": feed.NUM_FEEDS, "BLOCK": feed.BLOCK})
    print("feed")
    types = dict.fromkeys(("addresses_ptr",), torch.int64)
    types |= dict.fromkeys(("sources_ptr", "targets_ptr"), torch.int32)
    constants = {"ALIGNED": True, "WORDS": blocks.WORDS}
    code = code_of(blocks.copy_blocks_kernel, types, constants)
    print("copy_blocks", widest(code, "ld"), widest(code, "st"))
    for m in (1, 8):
        names = ("x_ptr", "weight_ptr", "bias_ptr", "out_ptr")
        block = min(gemv.SUMS // (m * gemv.ROWS), 1024)
        constants = {
            "M": m,
            "M_BLOCK": m,
            "HAS_BIAS": True,
            "ROWS": gemv.ROWS,
            "BLOCK": block,
        }
        code = code_of(gemv.gemv_kernel, dict.fromkeys(names, torch.bfloat16), constants)
        print("gemv", m, widest(code, "ld"), 16)


def logits() -> None:
    """Rows of logits as a model gives them."""
    for dtype in (torch.float32, torch.bfloat16):
        names = {"logits_ptr": dtype}
        ints = dict.fromkeys(("start_ptr", "token_ptr"), torch.int32)
        floats = dict.fromkeys(("factor_ptr", "add_ptr", "before_ptr"), torch.float32)
        for keeps, restores in ((False, False), (True, False), (True, True)):
            constants = {
                "KEEPS": keeps,
                "RESTORES": restores,
                "PARTS": edit.PARTS,
                "BLOCK": edit.BLOCK,
            }
            odd = ("vocabulary", "first")
            code = code_of(
                edit.edit_kernel, names | ints | floats, constants, odd=odd, fusion=False
            )
            print("edit", exact(code))
        ints = dict.fromkeys(("chosen_ptr", "tokens_ptr"), torch.int32)
        floats = dict.fromkeys(("logprobs_ptr", "chosen_logprobs_ptr"), torch.float32)
        constants = {"LANES": top_logprobs.LANES, "COLUMN": 64}
        odd = ("wanted", "tokens_stride", "logprobs_stride")
        kernel = top_logprobs.top_logprobs_kernel
        code = code_of(kernel, names | ints | floats, constants, odd=odd, warps=8)
        print("top_logprobs", widest(code, "ld"), 16)


if __name__ == "__main__":
    sampler()
    layers()
    logits()
