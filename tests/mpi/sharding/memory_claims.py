"""The memory of sharded models, counted while they train on two nodes: by hand, and mode against mode."""

import functools
import gc
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

import coarse
import coarse.torch as ct
from coarse import CoarseError, MismatchError, OutOfDeviceMemoryError
from coarse.hardware.models import Precision, uniform
from coarse.hardware.sharded_memory import ShardedTraining, UnitMemory, sharded_account
from coarse.strategy.sharding import LIVE, States
from coarse.torch.fsdp.groups import shard_groups
from tests.support.volumes import TrainedShape, accelerator_nbytes

NUM_WORKERS = 4
NODE_WORKERS = 2
NUM_BLOCKS = 4
WIDTH = 64
BATCH = 4

UNIT = 2 * 4 * WIDTH * WIDTH
"""Bytes of one block's parameters, in float32."""
WHOLE = NUM_BLOCKS * UNIT
SHARDS = WHOLE // NUM_WORKERS
STATES = 2 * SHARDS
"""Adam's."""
ACTIVATIONS = 2 * NUM_BLOCKS * 4 * BATCH * WIDTH
"""Of each block its input, and what its activation function returns."""


class Block(nn.Module):
    """Two layers, a unit."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)
        self.second = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


@dataclass
class Training:
    """A sharded model and the memory that it takes."""

    account: ct.DeviceAccount
    model: nn.Module
    optimizer: torch.optim.Optimizer

    @classmethod
    def start(cls, mode: str, capacity_bytes: int | None = None, **options: object) -> "Training":
        account = ct.DeviceAccount(capacity_bytes, rank=ct.rank())
        model = nn.Sequential(*(Block() for _ in range(NUM_BLOCKS)))
        ct.fully_shard(model, mode=mode, units=[Block], account=account, **options)
        return cls(account, model, torch.optim.AdamW(model.parameters()))

    def step(self) -> None:
        self.model(torch.ones(BATCH, WIDTH)).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def peak_bytes(self) -> int:
        """Of the second step, when the optimizer has its states."""
        self.step()
        self.account.restart_peaks()
        self.step()
        return self.account.peak_bytes


@functools.cache
def peak_bytes(mode: str) -> int:
    return Training.start(mode).peak_bytes()


def each_kind_is_what_a_count_by_hand_says() -> None:
    training = Training.start("fsdp")
    assert training.account.ledger.used_by_kind() == {"shards": SHARDS}
    loss = training.model(torch.ones(BATCH, WIDTH)).sum()
    assert training.account.ledger.used_by_kind() == {"shards": SHARDS, "activations": ACTIVATIONS}
    loss.backward()
    assert training.account.ledger.used_by_kind() == {"shards": SHARDS, "gradients": SHARDS}
    training.optimizer.step()
    training.optimizer.zero_grad()
    assert training.account.ledger.used_by_kind() == {"shards": SHARDS, "optimizer states": STATES}


def a_model_that_is_gone_holds_nothing() -> None:
    training = Training.start("zeropp")
    training.step()
    account = training.account
    del training
    gc.collect()
    assert account.used_bytes == 0, account.ledger.used_by_kind()


def each_mode_keeps_what_the_formulas_say() -> None:
    shape = TrainedShape(
        num_nodes=NUM_WORKERS // NODE_WORKERS,
        num_workers=NUM_WORKERS,
        parameter_nbytes=WHOLE,
        trainable_nbytes=WHOLE,
        gradient_nbytes=WHOLE,
    )
    for mode in LIVE:
        training = Training.start(mode)
        training.step()
        used = training.account.ledger.used_by_kind()
        kept_bytes = used.pop("shards") + used.pop("caches", 0)
        assert kept_bytes == accelerator_nbytes(mode, shape), (mode, kept_bytes)
        of_each_shard = NUM_WORKERS // NODE_WORKERS if mode == "hybrid" else 1
        assert used == {"optimizer states": of_each_shard * STATES}, (mode, used)


def the_simulators_account_holds_what_is_gathered_and_what_is_not_reduced() -> None:
    for reshards in (True, False):
        training = Training.start("fsdp", reshard_after_forward=reshards)
        training.peak_bytes()
        used = training.account.ledger.used_at_peak()
        held = used["gathered units"] + used["gradients"]
        units = UnitMemory(root_bytes=0, largest_bytes=UNIT, largest_trained_bytes=UNIT, reshards=reshards)
        of = ShardedTraining(
            model=uniform(NUM_BLOCKS, UNIT // 4), num_gpus=NUM_WORKERS, num_nodes=NUM_WORKERS // NODE_WORKERS,
            held=States.SHARDED, units=units, precision=Precision.FP32,
        )  # fmt: skip
        rows = {row.name: row.nbytes for row in sharded_account(of, BATCH).rows}
        ours = rows["gathered units"] + rows["gradients"] + rows["gradients under way"]
        assert held <= ours <= held + UNIT // 2, (reshards, held / UNIT, ours / UNIT)


def zeropp_peaks_higher_by_a_nodes_share_of_the_model() -> None:
    assert peak_bytes("zeropp") == peak_bytes("fsdp") + WHOLE // NODE_WORKERS


def fcdp_with_host_caches_alone_peaks_where_fsdp_does() -> None:
    assert peak_bytes("fcdp") == peak_bytes("fsdp")


def fcdp_that_may_fill_the_accelerator_fits_where_fsdp_fits() -> None:
    for tau in (0.5, 1.0):
        training = Training.start("fcdp", peak_bytes("fsdp"), cache=ct.AcceleratorCache(tau=tau))
        assert training.peak_bytes() == peak_bytes("fsdp"), tau


def fcdp_uses_an_accelerator_that_is_roomy_up_to_tau() -> None:
    roomy = Training.start("fcdp", 10 * peak_bytes("fsdp"), cache=ct.AcceleratorCache(tau=0.8))
    roomy.step()
    assert roomy.account.ledger.highest_by_kind()["gathered units"] >= WHOLE
    unused = Training.start("fcdp", 10 * peak_bytes("fsdp"), cache=ct.AcceleratorCache(tau=0.0))
    assert unused.peak_bytes() == peak_bytes("fsdp")


def fcdp_reads_of_the_nodes_memory_its_part_or_all_where_it_is_told_to() -> None:
    for options, nbytes in (({}, WHOLE // NODE_WORKERS), ({"reads": "parts"}, WHOLE // NODE_WORKERS),
                            ({"reads": "whole"}, WHOLE)):  # fmt: skip
        training = Training.start("fcdp", **options)
        before = sum(coarse.statistics()["from_node_memory"].values())
        training.step()  # a step's backward
        assert sum(coarse.statistics()["from_node_memory"].values()) - before == nbytes, options


def failure_of(call: Callable[[], object]) -> CoarseError:
    """The error that a call ends with."""
    try:
        call()
    except CoarseError as error:
        return error
    raise AssertionError("nothing was raised")


def a_full_accelerator_is_an_error_on_its_worker_with_what_it_holds() -> None:
    error = failure_of(Training.start("fsdp", peak_bytes("fsdp") - 1).peak_bytes)
    assert isinstance(error, OutOfDeviceMemoryError)
    assert isinstance(error, torch.OutOfMemoryError)
    assert error.rank == ct.rank()
    assert {"shards", "gathered units", "activations", "optimizer states"} <= set(error.used_by_kind)
    assert f"rank {ct.rank()}" in str(error)


def the_others_are_told_when_one_worker_is_full_and_goes_on_with_something_else() -> None:
    is_full = ct.rank() == 1
    training = Training.start("fsdp", SHARDS + UNIT - 1 if is_full else None)
    error = failure_of(training.step)
    if is_full:
        assert isinstance(error, OutOfDeviceMemoryError), repr(error)
        error = failure_of(shard_groups().group_of(tuple(range(NUM_WORKERS)), "hierarchical").barrier)
    assert isinstance(error, MismatchError), repr(error)
    assert "forward gather of" in str(error) or is_full, error


CLAIMS = (
    each_kind_is_what_a_count_by_hand_says,
    a_model_that_is_gone_holds_nothing,
    each_mode_keeps_what_the_formulas_say,
    the_simulators_account_holds_what_is_gathered_and_what_is_not_reduced,
    zeropp_peaks_higher_by_a_nodes_share_of_the_model,
    fcdp_with_host_caches_alone_peaks_where_fsdp_does,
    fcdp_that_may_fill_the_accelerator_fits_where_fsdp_fits,
    fcdp_uses_an_accelerator_that_is_roomy_up_to_tau,
    fcdp_reads_of_the_nodes_memory_its_part_or_all_where_it_is_told_to,
    a_full_accelerator_is_an_error_on_its_worker_with_what_it_holds,
    the_others_are_told_when_one_worker_is_full_and_goes_on_with_something_else,
)
