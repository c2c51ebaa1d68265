"""Claims of models whose workers, switches and optimizer nodes are on hosts of their own: FOLDER.

The table: workers 0 and 1 and device 0 on one host, worker 2 and device 1 on another, devices 2 and 3 alone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from torch import nn

import coarse
import coarse.torch as ct
from coarse.errors import ConfigError, MismatchError
from coarse.luwu.torch.optimizer import NetworkOptimizer
from tests.mpi.luwu.models import Net, loss_of
from tests.support.claims import Claim, in_test_all, raises, report_claims, takes_all
from tests.support.paged_reference import Reference, added_as_integers

FOLDER = Path(sys.argv[1])
SWITCH, OPTIMIZER = 2, 3
NETWORKS = ("mpi", "udp")
ADAMW = {"lr": 1e-2, "weight_decay": 0.1}
HEADER_SHARE = 0.02
"""Of bytes: frames' and datagrams' headers, heartbeats and records."""
_number = 0


def in_network(model: nn.Module, **options: Any) -> tuple[nn.Module, NetworkOptimizer]:
    """A model in the network, its optimizer on a host of its own."""
    global _number
    _number += 1
    given = {"optimizers": [OPTIMIZER], "storage": [FOLDER / f"{_number}"], "memory": 64 << 20, **ADAMW}
    return ct.model_in_network(model, torch.optim.AdamW, **{**given, **options})


class Wide(nn.Module):
    """Layers of equal size, of 10^7 elements in all."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, width) -> the same shape."""
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def wide_loss(model: nn.Module, worker: int, step: int, number: int) -> torch.Tensor:
    """Of rows that each worker and step draws."""
    width = model.layers[0].in_features  # type: ignore[union-attr, index]
    generator = torch.Generator().manual_seed(100 * step + worker)
    loss: torch.Tensor = model(torch.randn(2, int(width), generator=generator)).square().mean()  # type: ignore[arg-type]
    return loss


def require_equal(make: Callable[[], nn.Module], loss_by: Any, steps: int, **options: Any) -> None:
    """A training has the bits of one place."""
    reference = Reference(make(), coarse.size(), settings=ADAMW)
    model, optimizer = in_network(make(), **options)
    for step in range(1, steps + 1):
        loss_by(model, coarse.rank(), step, 0).backward()
        optimizer.step()
        optimizer.zero_grad()
        reference.step(loss_by, step)
    differing = reference.differing(model.state_dict())
    assert not differing, differing
    optimizer.close()


def networks(number: int) -> tuple[str, ...]:
    """All networks for a case, or in `make test` one: cases by their number take turns."""
    return NETWORKS if takes_all() else (NETWORKS[number % 2],)


# --- the same bits


def trees_of_switches_give_the_same_bits() -> None:
    for number, switches in enumerate((None, SWITCH, {SWITCH: [0]}, {SWITCH: [0, 1]}, {1: [0], SWITCH: [1]})):
        for network in networks(number):
            require_equal(Net, loss_of, 4, switches=switches, network=network)


def an_optimizer_node_may_be_on_a_workers_host() -> None:
    for optimizers in ([0], [1], [0, 1, 2, 3]):
        require_equal(Net, loss_of, 4, optimizers=optimizers, switches=None, network="udp")
    require_equal(Net, loss_of, 4, optimizers=[0], switches={SWITCH: [1], OPTIMIZER: [SWITCH]}, network="udp")


def ten_million_elements_lose_no_bit_where_one_in_ten_datagrams_is_lost() -> None:
    require_equal(lambda: Wide(1000, 10), wide_loss, 1, switches=SWITCH, network="udp", loss=0.1)


@in_test_all
def chunks_of_every_size_are_cut_into_packets() -> None:
    for chunk_elements in (64, 1024, 8192, 1 << 19):
        for network in NETWORKS:
            options = {"chunk_elements": chunk_elements, "dtype": torch.bfloat16, "network": network}
            reference = Reference(Net(), coarse.size(), settings=ADAMW, dtype=torch.bfloat16)
            model, optimizer = in_network(Net(), switches=SWITCH, **options)
            for step in (1, 2):
                loss_of(model, coarse.rank(), step, 0).backward()
                optimizer.step()
                optimizer.zero_grad()
                reference.step(loss_of, step)
            assert not (differing := reference.differing(model.state_dict())), (options, differing)
            optimizer.close()


# --- integer sums


def integer_sums_have_the_bits_of_one_host() -> None:
    every = (("int64", torch.float32), ("int32-switchml", torch.float32), ("int64", torch.bfloat16))
    for how, dtype in every if takes_all() else every[1:]:
        for switches, chunk_elements, network in ((SWITCH, 2048, "udp"), ({1: [0], SWITCH: [1]}, 1 << 19, "mpi")):
            loss = 0.05 if network == "udp" else 0.0
            options = {"switches": switches, "network": network, "loss": loss, "chunk_elements": chunk_elements}
            model, optimizer = in_network(Net(), sum=how, dtype=dtype, **options)
            add = added_as_integers(optimizer.remote.declaration)
            reference = Reference(Net(), coarse.size(), settings=ADAMW, dtype=dtype, add=add)
            for step in (1, 2):
                loss_of(model, coarse.rank(), step, 0).backward()
                optimizer.step()
                optimizer.zero_grad()
                reference.step(loss_of, step)
            assert not (differing := reference.differing(model.state_dict())), (how, options, differing)
            optimizer.close()


@in_test_all
def integer_sums_do_not_depend_on_the_tree() -> None:
    found = set()
    for optimizers, switches in (([OPTIMIZER], SWITCH), ([0], None), ([0, 1, 2, 3], None), ([OPTIMIZER], {1: [0]})):
        model, optimizer = in_network(Net(), sum="int64", optimizers=optimizers, switches=switches, network="udp")
        for step in (1, 2, 3):
            loss_of(model, coarse.rank(), step, 0).backward()
            optimizer.step()
            optimizer.zero_grad()
        states = model.state_dict()
        found.add(b"".join(states[name].numpy().tobytes() for name in sorted(states)))
        optimizer.close()
    assert len(found) == 1, len(found)


def what_integers_cannot_hold_comes_as_floats_would_add_it() -> None:
    infinity = float("inf")
    for number, (values, wanted) in enumerate((
        ((1.0, float("nan"), 1.0), "nan"), ((infinity, 1.0, 1.0), "inf"), ((1.0, infinity, -infinity), "nan"),
        ((-infinity, 1.0, -infinity), "-inf"), ((1.0, 2.0, 3.0), "6.0"),
    )):  # fmt: skip
        layer = nn.Linear(4, 1, bias=False)
        torch.nn.init.zeros_(layer.weight)
        storage = FOLDER / f"floats-{number}"
        model, optimizer = ct.model_in_network(
            layer, torch.optim.SGD, lr=1.0, storage=[storage], optimizers=[OPTIMIZER], switches=SWITCH, sum="int64",
            op=coarse.Sum,
        )  # fmt: skip
        rows = torch.ones(1, 4)
        rows[0, 2] = values[coarse.rank()]
        model(rows).sum().backward()
        optimizer.step()
        found = model.state_dict()["weight"].neg().flatten().tolist()
        assert str(found[2]) == wanted, (values, found)
        assert found[0] == found[1] == found[3] == 3.0, found
        optimizer.close()


class Branches(nn.Module):
    """Two parameters in one unit, of which a worker may leave one out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.trunk = nn.Parameter(torch.randn(40, 40))
        self.branch = nn.Parameter(torch.randn(40, 40))

    def forward(self, x: torch.Tensor, *, with_branch: bool) -> torch.Tensor:
        """(rows, 40) -> the same shape."""
        y = x @ self.trunk
        return y + x @ self.branch if with_branch else y


def branch_loss(model: nn.Module, worker: int, step: int, number: int) -> torch.Tensor:
    """Worker 1 leaves the branch out, and in the second pass all but worker 2 do."""
    generator = torch.Generator().manual_seed(100 * step + 10 * number + worker)
    with_branch = worker == 2 if number else worker != 1
    loss: torch.Tensor = model(torch.randn(2, 40, generator=generator), with_branch=with_branch).square().mean()
    return loss


def passes_and_absent_gradients_are_summed_as_integers_too() -> None:
    model, optimizer = in_network(Branches(), sum="int64", switches=SWITCH)
    add = added_as_integers(optimizer.remote.declaration)
    reference = Reference(Branches(), coarse.size(), settings=ADAMW, add=add)
    for step in (1, 2):
        for number in range(2):
            branch_loss(model, coarse.rank(), step, number).backward()
        optimizer.step()
        optimizer.zero_grad()
        reference.step(branch_loss, step, num_passes=2)
    assert not (differing := reference.differing(model.state_dict())), differing
    optimizer.close()


# --- bytes

RECORDS_BYTES = 16384
"""More than asking for statistics moves, less than a piece of a layer."""


@contextmanager
def counted() -> Iterator[dict[int, tuple[int, int]]]:
    """By device, what it sent to other hosts and received from them meanwhile."""
    found: dict[int, tuple[int, int]] = {}
    before = traffic()
    yield found
    after = traffic()
    found.update({device: tuple(np.subtract(after[device], before[device])) for device in after})  # type: ignore[misc]


def traffic() -> dict[int, tuple[int, int]]:
    """Of all devices, once nobody sends any more: a layer that a worker fetched ahead may still be under way."""
    names = ("between_nodes_sent_bytes", "between_nodes_received_bytes")
    before: dict[int, tuple[int, int]] = {}
    while True:
        barrier()
        devices = coarse.statistics(all_devices=True)["devices"]
        found = {device: tuple(int(counts[name]) for name in names) for device, counts in devices.items()}
        moves = [abs(np.subtract(counts, before.get(device, (0, 0)))).max() for device, counts in found.items()]
        moved = np.array(max(moves), np.int64)
        coarse.workers_comm().Allreduce(MPI.IN_PLACE, moved, MPI.MAX)
        if moved < RECORDS_BYTES:
            return found
        before = found
        time.sleep(0.1)


def barrier() -> None:
    """All workers meet."""
    coarse.workers_comm().Barrier()


def a_step_moves_what_the_paper_says() -> None:
    depth, width = 8, 512
    size = 4 * depth * width**2
    for number, (switches, optimizer_out, optimizer_in) in enumerate(((SWITCH, 2, 1), (None, 4, 2)), 1):
        for network in networks(number):
            model, optimizer = in_network(Wide(width, depth), switches=switches, network=network)
            wide_loss(model, coarse.rank(), 1, 0).backward()  # the first values have come by now
            optimizer.step()
            optimizer.zero_grad()
            optimizer.wait()
            with counted() as moved:
                wide_loss(model, coarse.rank(), 2, 0).backward()
                optimizer.step()
                optimizer.zero_grad()
                optimizer.wait()
            # the first layer needs no gradient of its input, and is pulled for backward all the same
            wanted = {0: (1, 2), 1: (1, 2), OPTIMIZER: (optimizer_out, optimizer_in)}
            wanted[SWITCH] = (0, 0) if switches is None else (1 + 2 * 2, 2 + 2)
            for device, shares in wanted.items():
                for found, share in zip(moved[device], shares, strict=True):
                    assert abs(found - share * size) <= HEADER_SHARE * size, (network, switches, device, moved, size)
            optimizer.close()


# --- what is refused


def switches_that_make_no_tree_are_refused() -> None:
    for switches, text in (
        ({SWITCH: [0], 1: [0]}, "name it once"),
        ({SWITCH: [0, 1, SWITCH]}, "circle"),
        ({SWITCH: [0, 7]}, "memory devices [7]"),
        (9, "memory devices [9]"),
    ):
        with raises(ConfigError, text):
            in_network(Net(), switches=switches)


def options_that_do_not_fit_are_refused() -> None:
    with raises(ConfigError, "of network='udp'"):
        in_network(Net(), loss=0.1)
    with raises(ConfigError, "below 1"):
        in_network(Net(), network="udp", loss=1.5)
    with raises(ConfigError, "one of ('mpi', 'udp')"):
        in_network(Net(), network="rdma")
    with raises(ConfigError, "different memory devices"):
        in_network(Net(), optimizers=[3, 3])
    with raises(ConfigError, "sum must be one of"):
        in_network(Net(), sum="int16")


def workers_that_differ_in_their_network_are_told() -> None:
    with raises(MismatchError, "network"):
        in_network(Net(), network="udp" if coarse.rank() else "mpi")


CLAIMS: tuple[Claim, ...] = (
    trees_of_switches_give_the_same_bits,
    an_optimizer_node_may_be_on_a_workers_host,
    ten_million_elements_lose_no_bit_where_one_in_ten_datagrams_is_lost,
    chunks_of_every_size_are_cut_into_packets,
    integer_sums_have_the_bits_of_one_host,
    integer_sums_do_not_depend_on_the_tree,
    what_integers_cannot_hold_comes_as_floats_would_add_it,
    passes_and_absent_gradients_are_summed_as_integers_too,
    a_step_moves_what_the_paper_says,
    switches_that_make_no_tree_are_refused,
    options_that_do_not_fit_are_refused,
    workers_that_differ_in_their_network_are_told,
)


def main() -> None:
    ct.init()
    torch.set_num_threads(1)
    report_claims(CLAIMS, FOLDER)


if __name__ == "__main__":
    main()
