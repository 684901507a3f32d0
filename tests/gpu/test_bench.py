"""The GPU bench in its tiny form on a GPU: every part is complete, every kernel is captured."""

import pytest

from benches.gpu import run as program
from benches.gpu.run import NAMES, Report, run
from benches.gpu.tiny import tiny_model

pytestmark = pytest.mark.timeout(600)  # kernels are compiled


@pytest.fixture(scope="module")
def report() -> Report:
    with tiny_model() as folder, pytest.MonkeyPatch.context() as patch:
        # Of which compiling is the most, the first time.
        patch.setattr(program, "TINY_SHARE_S", 120.0)
        return run(NAMES, "cuda", True, folder, attention="triton", apart=False)


@pytest.mark.parametrize("name", NAMES)
def test_a_part_is_complete(report: Report, name: str) -> None:
    result = report.parts[name]
    assert (result.status, result.why) == ("complete", None)
    # Heads of 16 elements are none of FlashInfer's; what else is missing should not be.
    notes = {row.get("note") for row in result.rows if row.get("by") != "flashinfer"}
    assert notes == {None}


def test_every_kernel_is_captured(report: Report) -> None:
    ours = [row for row in report.parts["kernels"].rows if row["by"] == "triton"]
    assert {row["kernel"] for row in ours} >= {
        "add_rms_norm", "head_rms_norm", "rope_append", "gated",
        "sample", "top_logprobs", "penalty", "verify", "attention, decode", "attention, prompt",
    }  # fmt: skip
    assert [row for row in ours if not row["captured"]] == []


def test_graphs_are_captured_for_every_bucket(report: Report) -> None:
    for row in report.parts["graphs"].rows:
        assert row["graphs"] >= 2
        # A driver takes memory for graphs in pieces, of which a small one may need no more.
        assert row["graph_bytes"] >= 0
        assert row["replay_s"] > 0
