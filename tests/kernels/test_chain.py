"""Which devices launch kernels ahead."""

import pytest
import torch

from pyengine.kernels import chain


@pytest.mark.parametrize(
    ("capability", "ahead"), [((8, 0), False), ((8, 9), False), ((9, 0), True), ((12, 0), True)]
)
def test_gpus_launch_ahead_from_hopper_on(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], ahead: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    # As it is without its cache, which would know the device of this test in others.
    monkeypatch.setattr(chain, "capable", chain.capable.__wrapped__)
    launched = {"CHAINED": True, "launch_pdl": True} if ahead else {}
    assert chain.chained(torch.device("cuda", 0)) == launched
    assert chain.chained(torch.device("cpu")) == {}
