"""Floors against figures for Llama-3-8B that were worked out by hand."""

from typing import Any

import pytest

from benches.gpu.floors import (
    LLAMA_3_8B,
    Ceilings,
    Shape,
    decode_bytes,
    kv_token_bytes,
    prefill_flops,
    prefill_seconds,
    step_flops,
    step_seconds,
    weight_bytes_read,
)

CEILINGS = Ceilings(4e12, 4e12, 8e14, 2e-6)


def test_parameters_of_llama_3_8b() -> None:
    # q and o 4096 x 4096, k and v 4096 x 1024, three matrices of 4096 x 14336.
    layer = 2 * 16_777_216 + 2 * 4_194_304 + 3 * 58_720_256
    assert layer == 218_103_808
    assert LLAMA_3_8B.layer_matrix_elements == layer
    assert LLAMA_3_8B.embedding_elements == 525_336_576
    # What Meta's checkpoint has.
    assert LLAMA_3_8B.parameters == 8_030_261_248


def test_shape_from_a_config() -> None:
    config = {
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
        "tie_word_embeddings": False,
    }
    assert Shape.of(config) == LLAMA_3_8B
    tied = Shape.of(config | {"tie_word_embeddings": True, "num_key_value_heads": None})
    assert tied.kv_heads == 32
    assert weight_bytes_read(tied, 0) == 2 * tied.parameters


def test_bytes_of_a_decode_step() -> None:
    # 2 (K, V) x 32 layers x 8 heads x 128 x 2 bytes: 128 KiB a token.
    assert kv_token_bytes(LLAMA_3_8B) == 131_072
    assert kv_token_bytes(LLAMA_3_8B, 1) == 65_536
    # 7,504,924,672 parameters without the embedding, and one row of that: 15.0 GB.
    assert weight_bytes_read(LLAMA_3_8B, 1) == 15_009_857_536
    # 64 sequences at 512: another 4.3 GB of KV.
    assert decode_bytes(LLAMA_3_8B, 64, 64 * 512) == 15_009_849_344 + 64 * 8192 + 2**32


def test_operations() -> None:
    # One token: two for each of 7,504,658,432 weights of matrices, and 4 x 4096 x 32 of attention.
    assert prefill_flops(LLAMA_3_8B, 1) == 2 * 7_504_658_432 + 524_288
    # 8,192 tokens: 13.96 GFLOP each, the output once, 33.6 million pairs: 132 TFLOP.
    assert prefill_flops(LLAMA_3_8B, 8192) == pytest.approx(131.95e12, rel=1e-3)
    # In two halves it is as much.
    halves = prefill_flops(LLAMA_3_8B, 4096, logits=0) + prefill_flops(LLAMA_3_8B, 4096, 4096)
    assert halves == prefill_flops(LLAMA_3_8B, 8192)
    assert step_flops(LLAMA_3_8B, 4, 1, 0) == 4 * prefill_flops(LLAMA_3_8B, 1)


def test_seconds_of_llama_3_8b() -> None:
    # 15.0 GB + 67 MB at 4 TB/s.
    assert step_seconds(CEILINGS, LLAMA_3_8B, 1, 1, 511) == pytest.approx(3.769e-3, rel=1e-3)
    # 15.0 + 68.7 GB.
    assert step_seconds(CEILINGS, LLAMA_3_8B, 128, 1, 4095) == pytest.approx(20.93e-3, rel=1e-3)
    # 64 rows of 9 tokens: 576 x 15 GFLOP outlast 15 + 4.4 GB.
    assert step_seconds(CEILINGS, LLAMA_3_8B, 64, 9, 512) == pytest.approx(11.0e-3, rel=2e-2)
    # A short prompt reads weights, a long one computes.
    assert prefill_seconds(CEILINGS, LLAMA_3_8B, 128) == pytest.approx(3.753e-3, rel=1e-3)
    assert prefill_seconds(CEILINGS, LLAMA_3_8B, 8192) == pytest.approx(0.1649, rel=1e-3)


def test_the_slowest_counts() -> None:
    assert CEILINGS.seconds() == 2e-6
    assert CEILINGS.seconds(read=4e6, copied=4e6) == pytest.approx(2e-6)
    assert CEILINGS.seconds(read=4e9, flops=8e11) == pytest.approx(1e-3)
    assert CEILINGS.seconds(read=4e9, flops=16e11) == pytest.approx(2e-3)


def test_ceilings_are_the_best_that_was_measured() -> None:
    rows: list[dict[str, Any]] = [
        {"what": "copy", "per_second": 3e12},
        {"what": "copy", "per_second": 4e12},
        {"what": "read", "per_second": 4.1e12},
        {"what": "matmul", "per_second": 7e14},
        {"what": "matmul", "per_second": None},
        {"what": "launch", "per_second": 5e5},
    ]
    assert Ceilings.of(rows) == Ceilings(4e12, 4.1e12, 7e14, 2e-6)
