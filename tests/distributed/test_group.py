import os
import threading
from types import SimpleNamespace

import pytest
import torch
import torch.distributed
from torch.distributed import HashStore  # type: ignore[attr-defined]  # public, but not listed

from pyengine.distributed.group import Alone, TorchGroup, host_store
from tests.distributed.thread_ranks import CPU, together


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [2, 3])
def test_sums_and_shares_of_all_ranks(size: int, dtype: torch.dtype) -> None:
    def work(group: TorchGroup) -> tuple[torch.Tensor, torch.Tensor]:
        mine = torch.full((2, 3), float(group.rank + 1), dtype=dtype)
        gathered = torch.empty(size * 2, 3, dtype=dtype)
        group.all_gather(mine, gathered)
        group.all_reduce(mine[:1])
        return mine, gathered

    total = size * (size + 1) / 2
    for rank, (mine, gathered) in enumerate(together(size, work)):
        assert mine[0].eq(total).all()
        assert mine[1].eq(rank + 1).all()
        assert gathered[:, 0].tolist() == [r + 1.0 for r in range(size) for _ in range(2)]


def test_the_sum_has_the_same_bits_everywhere() -> None:
    def work(group: TorchGroup) -> torch.Tensor:
        noise = torch.Generator().manual_seed(group.rank)
        mine = torch.randn(1000, generator=noise)
        group.all_reduce(mine)
        return mine

    first, *others = together(3, work)
    assert all(torch.equal(first, other) for other in others)


def test_the_least_of_all_numbers() -> None:
    assert together(3, lambda group: group.least(10 - group.rank)) == [8, 8, 8]


def test_alone_there_is_nothing_to_exchange() -> None:
    mine, out = torch.ones(2), torch.zeros(2)
    Alone().all_reduce(mine)
    Alone().all_gather(mine, out)
    assert mine.tolist() == out.tolist() == [1.0, 1.0]
    assert Alone().least(7) == 7


def test_ranks_meet_at_a_port_and_leave_torchs_own_group_alone() -> None:
    store = host_store()
    other = threading.Thread(target=lambda: TorchGroup(host_store(store.port), 1, 2, CPU).least(1))
    other.start()
    assert TorchGroup(store, 0, 2, CPU).least(2) == 1
    other.join()
    assert not torch.distributed.is_initialized()


def test_waiting_for_a_rank_that_goes_away_raises() -> None:
    store = HashStore()
    met = threading.Barrier(2)
    failed: list[Exception] = []

    def waits() -> None:
        group = TorchGroup(store, 0, 2, CPU)
        met.wait()
        try:
            group.least(1)
        except RuntimeError as error:
            failed.append(error)

    waiting = threading.Thread(target=waits)
    waiting.start()
    group = TorchGroup(store, 1, 2, CPU)
    met.wait()
    group.abort()
    del group
    waiting.join(30)
    assert not waiting.is_alive()
    assert "Connection" in str(failed[0])


def test_a_rank_waits_for_another_no_longer_than_the_limit() -> None:
    given_up = threading.Event()

    def work(group: TorchGroup) -> None:
        group.least(1)  # all are there
        if group.rank == 1:  # is busy for as long as the other waits
            assert given_up.wait(60)
            return
        group.limit(0.5)
        try:
            with pytest.raises(RuntimeError, match="imed out"):
                group.all_reduce(torch.zeros(1))
        finally:
            given_up.set()

    together(2, work)


@pytest.mark.parametrize("given", [None, "eth0"])
def test_settings_of_nccl_reach_no_other_process(
    given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    class Connects:
        Options = SimpleNamespace

        def __init__(self, *_: object) -> None:
            """Reads nothing yet."""

        def eager_connect_single_device(self, device: torch.device) -> None:
            seen.append(os.environ["NCCL_SOCKET_IFNAME"])
            # A rank that captures alone would wait for the others to register its buffers.
            assert os.environ["NCCL_GRAPH_REGISTER"] == "0"

    for name in ("NCCL_SOCKET_IFNAME", "NCCL_GRAPH_REGISTER"):
        monkeypatch.delenv(name, raising=False)
    if given is not None:
        monkeypatch.setenv("NCCL_SOCKET_IFNAME", given)
    monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL", Connects, raising=False)
    TorchGroup(HashStore(), 0, 1, torch.device("cuda", 0))
    assert seen == [given or "lo"]
    assert os.environ.get("NCCL_SOCKET_IFNAME") == given
    assert "NCCL_GRAPH_REGISTER" not in os.environ
