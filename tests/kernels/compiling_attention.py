"""Compiles attention for an H200, which takes none: Llama-3-8B's heads over blocks of 16, or its
eighth under tensor parallelism. Prints of each launch what its code has. A program: Triton is not
to interpret here.
"""

import re

import torch
from triton import compiler
from triton.backends.compiler import GPUTarget

from pyengine.kernels import attention
from pyengine.kernels.attention_tiling import Heads, Tiling, prefix_tiling_for, tiling_for
from tests.kernels.compiling import TYPES, code_of, widest

LAUNCHES = [(1, 1, True), (8, 40, False), (4, 2048, False)]
"""Rows, tokens, and whether each row has one."""


def compile_attention(heads: Heads, tiling: Tiling, whole: bool, **flags: bool) -> None:
    kernel = attention.attend_kernel
    constants = {
        "GROUP": heads.group, "HEAD_DIM": heads.dim, "DIM": heads.dim, "BLOCK_SIZE": 16,
        "ROWS": tiling.rows, "KEYS": tiling.keys, "WHOLE": whole,
        "ONE_QUERY": False, "SHARES": False, "PREFIX": False, **flags,
    }  # fmt: skip
    pointers = dict.fromkeys(("queries_ptr", "out_ptr"), heads.dtype)
    pointers |= dict.fromkeys(("keys_ptr", "values_ptr"), heads.kv_dtype)
    pointers |= dict.fromkeys(("part_values_ptr", "part_sums_ptr"), torch.float32)
    plain = ("rows", "tokens", "splits", "parts", "first_part", "scale")
    types, attributes = {}, {}
    for place, name in enumerate(kernel.arg_names):
        if name in constants:
            types[name] = "constexpr"
            continue
        types[name] = TYPES[pointers.get(name, torch.int32)] if name.endswith("_ptr") else "i32"
        if name not in plain:
            attributes[(place,)] = [["tt.divisibility", 16]]
    types["scale"] = "fp32"
    source = compiler.ASTSource(kernel, types, constants, attributes)
    options = {
        "num_warps": tiling.warps,
        "num_stages": tiling.stages,
        "enable_fp_fusion": True,
    }
    done = compiler.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    code = str(done.asm["ptx"])
    copied = set(re.findall(r"cp\.async\.c[ag]\.shared\.global.*?, (0x\w+)", code))
    product = "wgmma" if "wgmma" in code else "mma" if "mma.sync" in code else "fma"
    print(
        heads.kv_dtype, heads.query, tiling.rows, *sorted(flag for flag in flags if flags[flag]),
        product, max((int(size, 16) for size in copied), default=0), done.metadata.shared,
    )  # fmt: skip


def compile_merge(at_once: int) -> None:
    pointers = {"out_ptr": torch.bfloat16}
    pointers |= dict.fromkeys(("part_values_ptr", "part_sums_ptr"), torch.float32)
    constants = {"HEAD_DIM": 128, "DIM": 128, "AT_ONCE": at_once}
    code = code_of(attention.merge_kernel, pointers, constants, odd=("parts",))
    print("merge", widest(code, "ld"))


def main() -> None:
    for at_once in (attention.FEW_PARTS, attention.MANY_PARTS):
        compile_merge(at_once)
    for kv_dtype in (torch.bfloat16, torch.float8_e4m3fn):
        heads = Heads(32, 8, 128, torch.bfloat16, kv_dtype)
        for rows, tokens, one in LAUNCHES:
            tiling = tiling_for(heads, rows, tokens, one_query=one, context=8192, processors=132)
            compile_attention(heads, tiling, tiling.splits == 1, ONE_QUERY=one)
    heads = Heads(4, 1, 128, torch.bfloat16, torch.bfloat16)
    tiling = prefix_tiling_for(heads, 64, context=8192, processors=132, splits=8)
    compile_attention(heads, tiling, False, PREFIX=True)
    tiling = tiling_for(heads, 64, 64, one_query=True, context=8192, processors=132)
    compile_attention(heads, tiling, False, SHARES=True, ONE_QUERY=True)


if __name__ == "__main__":
    main()
