"""The targets are read from the right figures."""

from typing import Any

from benches.gpu.targets import as_row, findings


def decode(sequences: int, token_s: float, floor_s: float, context: int = 512) -> dict[str, Any]:
    return {
        "sequences": sequences,
        "context": context,
        "token_s": token_s,
        "over_floor": token_s / floor_s,
    }


def test_targets_and_peers() -> None:
    rows = {
        "decode": [
            decode(1, 9.0, 1.0, context=4096),
            decode(1, 0.0045, 0.004),
            decode(32, 0.009, 0.005),
        ],
        "overhead": [
            {"placement": "thread", "sequences": 64, "exposed_ratio": 0.5},
            {"placement": "process", "sequences": 64, "exposed_ratio": 0.01},
        ],
        "baselines": [
            {"peer": "transformers", "sequences": 1, "context": 512, "token_s": 0.018},
            {"peer": "transformers", "sequences": 8, "context": 512, "token_s": 0.018},
            {"peer": "torch.compile", "sequences": 1, "context": 512, "token_s": None},
        ],
    }
    assert [as_row(finding) for finding in findings(rows)] == [
        {
            "what": "a token's time over its floor, 1 sequence",
            "measured": 1.125,
            "at_most": 1.25,
            "met": True,
        },
        {
            "what": "milliseconds a token, 32 sequences",
            "measured": 9.0,
            "at_most": 8.4,
            "met": False,
        },
        {
            "what": "exposed CPU time, 64 sequences, percent",
            "measured": 1.0,
            "at_most": 3.0,
            "met": True,
        },
        {
            "what": "a token's time over that of transformers, 1 sequences",
            "measured": 0.25,
            "at_most": None,
            "met": None,
        },
    ]


def test_nothing_measured_is_nothing_met() -> None:
    for rows in ({}, {"decode": [decode(1, 1.0, 1.0) | {"over_floor": None, "context": 512}]}):
        assert [finding.met for finding in findings(rows)] == [None, None, None]
