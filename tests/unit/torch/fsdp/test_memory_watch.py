"""The memory of a model that FSDP2 shards, against a count by hand; four workers, whose collectives move nothing."""

import gc
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

from coarse.errors import OutOfDeviceMemoryError
from coarse.torch.fsdp.account import DeviceAccount
from coarse.torch.fsdp.accounting import watch_memory
from coarse.torch.fsdp.activations import saved_tensors_counted

NUM_WORKERS = 4
NUM_BLOCKS = 3
WIDTH = 16
BATCH = 8

WEIGHT = 4 * WIDTH * WIDTH
"""Bytes of one linear layer."""
UNIT = 2 * WEIGHT
WHOLE = NUM_BLOCKS * UNIT
SHARDS = WHOLE // NUM_WORKERS
STATES = 2 * SHARDS
"""Adam's."""
ACTIVATION = 4 * BATCH * WIDTH
"""Bytes of one tensor between two layers."""


class Block(nn.Module):
    """Saves its input and what its activation function returns: a tensor each."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)
        self.second = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


class Checkpointed(Block):
    """Saves its input alone, and repeats its forward in backward."""

    def __init__(self, use_reentrant: bool = False) -> None:
        super().__init__()
        self.use_reentrant = use_reentrant
        self.inner = nn.Sequential(self.first, nn.ReLU(), self.second)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.inner, x, use_reentrant=self.use_reentrant)


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    """Worker 0 of four, without the others."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=NUM_WORKERS)
    yield
    dist.destroy_process_group()


def sharded(account: DeviceAccount, block: type[nn.Module] = Block, **options: object) -> nn.Module:
    """Blocks, each a unit, whose gathers and reductions take their buffers from the account."""

    class Gather(DefaultAllGather):
        def allocate(self, size, *, dtype, device):
            return account.empty(size[0], dtype=dtype, device=device, kind="gathered units")

    class Reduce(DefaultReduceScatter):
        def allocate(self, size, *, dtype, device):
            return account.empty(size[0], dtype=dtype, device=device, kind="gradients")

    model = nn.Sequential(*(block() for _ in range(NUM_BLOCKS)))
    mesh = init_device_mesh("cpu", (NUM_WORKERS,))
    for unit in [*model, model]:
        fully_shard(unit, mesh=mesh, **options)
    for unit in model.modules():
        if isinstance(unit, FSDPModule):
            unit.set_custom_all_gather(Gather())
            unit.set_custom_reduce_scatter(Reduce())
    watch_memory(model, account, is_offloaded="offload_policy" in options)
    return model


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.randn(BATCH, WIDTH, requires_grad=True)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_each_kind_is_what_a_count_by_hand_says():
    account = DeviceAccount()
    model = sharded(account)
    optimizer = torch.optim.Adam(model.parameters())
    assert account.ledger.used_by_kind() == {"shards": SHARDS}
    out = model(torch.randn(BATCH, WIDTH))
    saved = 2 * NUM_BLOCKS * ACTIVATION
    assert account.ledger.used_by_kind() == {"shards": SHARDS, "activations": saved}
    out.sum().backward()
    assert account.ledger.used_by_kind() == {"shards": SHARDS, "gradients": SHARDS}
    optimizer.step()
    optimizer.zero_grad()
    assert account.ledger.used_by_kind() == {"shards": SHARDS, "optimizer states": STATES}


def test_the_peak_is_what_a_count_by_hand_says():
    account = DeviceAccount()
    model = sharded(account)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        account.restart_peaks()
        step(model, optimizer)
    # In backward of the second block, as its first layer's gradient arrives: the block's parameters and the buffer into
    # which the first block is being gathered; the first block's two tensors; the last block's reduced gradients, the
    # buffer from which they were reduced, and this block's own.
    at_peak = {
        "shards": SHARDS,
        "optimizer states": STATES,
        "gathered units": 2 * UNIT,
        "activations": 2 * ACTIVATION,
        "gradients": UNIT // NUM_WORKERS + UNIT + UNIT,
    }
    assert account.peak_bytes == sum(at_peak.values())
    # In forward FSDP2 holds a unit, the buffer that it was gathered in and, a moment longer, the one before.
    assert account.ledger.highest_by_kind()["gathered units"] == 3 * UNIT


def two_steps(account: DeviceAccount) -> DeviceAccount:
    model = sharded(account)
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(2):
        step(model, optimizer)
    return account


def test_one_byte_less_than_the_peak_is_too_little():
    peak_bytes = two_steps(DeviceAccount()).peak_bytes
    assert two_steps(DeviceAccount(capacity_bytes=peak_bytes)).peak_bytes == peak_bytes
    full = DeviceAccount(capacity_bytes=peak_bytes - 1, rank=0)
    with pytest.raises(OutOfDeviceMemoryError, match="rank 0: the accelerator's memory is full") as caught:
        two_steps(full)
    assert {"shards", "activations", "gathered units"} <= set(caught.value.used_by_kind)


def test_memory_is_given_back_with_the_model():
    account = DeviceAccount()
    model = sharded(account)
    step(model, torch.optim.Adam(model.parameters()))
    del model
    gc.collect()
    assert account.used_bytes == 0


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointed_activations_count_while_backward_repeats_them(use_reentrant):
    account = DeviceAccount()
    model = sharded(account, lambda: Checkpointed(use_reentrant))
    out = model(torch.randn(BATCH, WIDTH, requires_grad=True))
    assert account.ledger.used_by_kind()["activations"] == NUM_BLOCKS * ACTIVATION
    account.restart_peaks()
    out.sum().backward()
    repeated = 1  # the block's input is saved already
    assert account.ledger.highest_by_kind()["activations"] == (NUM_BLOCKS + repeated) * ACTIVATION
    del out
    assert account.ledger.used_by_kind() == {"shards": SHARDS, "gradients": SHARDS}


def test_a_loss_outside_of_the_model_counts_where_it_is_said_to():
    account = DeviceAccount()
    model = sharded(account)
    out = model(torch.randn(BATCH, WIDTH))
    before = account.used_bytes
    with saved_tensors_counted(account):
        loss = out.softmax(-1).sum()
    assert account.used_bytes == before + ACTIVATION
    loss.backward()


def test_a_saved_tensor_that_is_changed_in_place_is_refused_as_without_counting():
    weight = torch.ones(3, requires_grad=True)
    with saved_tensors_counted(DeviceAccount()):
        loss = (weight * weight.exp().mul(2)).sum()
    with torch.no_grad():
        weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_what_is_offloaded_does_not_count():
    account = DeviceAccount()
    model = sharded(account, offload_policy=CPUOffloadPolicy(pin_memory=False))
    step(model, torch.optim.Adam(model.parameters()))
    step(model, torch.optim.Adam(model.parameters()))
    assert account.used_bytes == 0
    assert set(account.ledger.highest_by_kind()) == {"gathered units", "activations", "gradients"}


def test_a_failed_forward_leaves_no_counting_behind():
    account = DeviceAccount(capacity_bytes=SHARDS + UNIT)
    model = sharded(account)
    with pytest.raises(OutOfDeviceMemoryError):
        model(torch.randn(BATCH, WIDTH))
    before = account.used_bytes
    torch.randn(2, 2, requires_grad=True).exp()
    assert account.used_bytes == before


def test_a_model_that_has_no_memory_yet_counts_from_when_it_has():
    account = DeviceAccount()
    with torch.device("meta"):
        model = sharded(account)
        model.register_buffer("extra", torch.zeros(7))
    assert account.used_bytes == 0
    model.to_empty(device="cpu")
    step(model, torch.optim.SGD(model.parameters()))
    assert account.ledger.used_by_kind() == {"shards": SHARDS, "buffers": 28}


def test_accumulated_gradients_are_counted_once():
    account = DeviceAccount()
    model = sharded(account)
    for _ in range(3):
        model(torch.randn(BATCH, WIDTH)).sum().backward()
    assert account.ledger.used_by_kind() == {"shards": SHARDS, "gradients": SHARDS}
