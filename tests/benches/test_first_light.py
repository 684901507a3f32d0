"""The page that a first GPU's figures become."""

import re
from typing import Any

import pytest

from benches.gpu.first_light import compared, markdown, page
from benches.gpu.launches import SHOWN, STEPS, rows


def document(attention: str, **token_s: float) -> dict[str, Any]:
    decode = [
        {"sequences": int(at[1:]), "context": 512, "token_s": seconds, "note": None}
        for at, seconds in token_s.items()
    ]
    target = {"what": "a token's time", "measured": 1.3, "at_most": 1.25, "met": False}
    part = {"question": "How long?", "status": "cut", "why": "its time was over", "rows": decode}
    return {
        "setup": {"begun": "2030-01-01T00:00:00+00:00"},
        "machine": {"device": "NVIDIA H200", "attention": attention},
        "targets": [target],
        "parts": {"decode": part},
    }


def test_the_page_has_date_device_targets_and_parts() -> None:
    text = page({"triton": document("triton 3.6.0", b1=0.005)}, ["tests/gpu: see tests.txt"])
    assert text.splitlines() == [
        "**Failed**: tests/gpu: see tests.txt.", "",
        "### Attention: triton", "",
        "2030-01-01T00:00:00+00:00; device NVIDIA H200, attention triton 3.6.0", "",
        "| what | measured | at most | met |", "| --- | --- | --- | --- |",
        "| a token's time | 1.30 | 1.25 | no |", "",
        "`decode`: How long?, cut: its time was over", "",
        "| sequences | context | token |", "| --- | --- | --- |", "| 1 | 512 | 5 ms |",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("ours", "said"),
    [(0.0109, "at most 1.09 times .* can be the default"), (0.012, "1.20 times .* is not the")],
)
def test_triton_is_judged_by_its_worst_batch(ours: float, said: str) -> None:
    documents = {
        "triton": document("triton 3.6.0", b1=0.004, b32=ours),
        "auto": document("flashinfer 0.7.2", b1=0.005, b32=0.01),
    }
    text = compared(documents)
    assert text is not None
    assert "with 32 sequences at 512 tokens" in text
    assert re.search(said, text)


def test_without_flashinfer_nothing_is_judged() -> None:
    documents = {name: document("triton 3.6.0", b1=0.004) for name in ("triton", "auto")}
    assert compared(documents) == "FlashInfer was not measured: attention was triton 3.6.0."
    assert compared({"triton": documents["triton"]}) is None


def test_column_without_values_is_left_out() -> None:
    assert markdown([{"a": "x|y", "note": None}]) == "| a |\n| --- |\n| x/y |"


def test_kernels_of_a_step_and_the_time_between_them() -> None:
    kernels = [(f"kernel {n}", 2 * STEPS, STEPS * (n + 1) * 1e-6) for n in range(SHOWN + 2)]
    total = sum(each[2] for each in kernels) + STEPS * 5e-6
    found = list(rows([*kernels, ("nothing", 3, 0.0)], total))
    assert [row.kernel for row in found[-3:]] == ["2 others", "between kernels", "a step"]
    assert found[0].kernel == f"kernel {SHOWN + 1}"
    assert found[0].calls == 2.0
    assert found[0].call_s == pytest.approx((SHOWN + 2) * 0.5e-6)
    assert found[-2].time_s == pytest.approx(5e-6)
    assert sum(row.step_ratio for row in found[:-1]) == pytest.approx(1.0)
