"""Trees of hosts: what workers pull has the bits of one place, whatever is lost, comes twice or overtakes others."""

from dataclasses import replace
from functools import partial

import pytest

from coarse.luwu.device import links
from coarse.luwu.many_to_one import frames
from coarse.luwu.many_to_one.frames import HEADER_BYTES
from coarse.luwu.many_to_one.packets import unwrapped
from coarse.protocol.dtypes import DType
from coarse.protocol.plan import Placement
from coarse.strategy.builtin import Coarse
from tests.support.claims import takes_all
from tests.unit.luwu.device.hosts import Hosts, Order
from tests.unit.luwu.device.test_served import declared

SEEDS = range(30)
PLACE = Placement(
    client_nodes=(0, 0, 1), device_nodes=(0, 1, 2, 3, 4), local_proxies=(0, 0, 1), ranks=tuple(range(8)),
    planner=Coarse(), num_sync_groups=1,
)  # fmt: skip
SWITCH, OPTIMIZER, OTHER = 2, 3, 4
TREES: dict[str, dict[int, list[int]]] = {
    "no switch": {},
    "a switch": {SWITCH: [0, 1]},
    "a chain of two switches": {SWITCH: [0], OTHER: [SWITCH, 1]},
}


def made(
    seed: int,
    patch: pytest.MonkeyPatch,
    *,
    switches: dict[int, list[int]],
    loss: float,
    placement: Placement = PLACE,
    order: Order = ((0, 1), 2),
    **options: object,
) -> Hosts:
    """Hosts whose sizes and types follow from the seed."""
    declaration = declared(placement.num_clients, pulled=[DType.FLOAT32, DType.BFLOAT16][seed % 2])
    given = {"nodes": (OPTIMIZER,), "network": "udp", **options}
    model = replace(declaration.model, chunk_elements=[128, 512][seed // 4 % 2], num_devices=len(given["nodes"]))
    declaration = replace(
        declaration, model=model, storage=None, memory_bytes=[600_000, 1_000_000][seed // 8 % 2],
        switches=tuple((switch, tuple(below)) for switch, below in switches.items()), **given,
    )  # fmt: skip
    return Hosts(
        declaration, placement, seed, order, patch, is_born=seed // 2 % 2 == 0, loss=loss,
        payload_bytes=[192, 256, 320][seed % 3] + HEADER_BYTES, window=[3, 9, 40][seed // 3 % 3],
    )  # fmt: skip


@pytest.mark.parametrize("loss", [0.0, 0.1], ids=["all comes", "one in ten is lost"])
@pytest.mark.parametrize("tree", TREES)
def test_every_pull_has_its_steps_values(tree: str, loss: float, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in SEEDS if takes_all() else SEEDS[: 2 if loss else 1]:
        hosts = made(seed, monkeypatch, switches=TREES[tree], loss=loss)
        hosts.train(2)
        assert bool(hosts.wires.num_lost) == bool(hosts.num_resent) == bool(loss)


def test_a_switch_passes_on_as_many_bytes_as_it_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in SEEDS[::5] if takes_all() else SEEDS[:1]:
        hosts = made(seed, monkeypatch, switches=TREES["a chain of two switches"], loss=0.0)
        hosts.train(2)
        sent = [device.sent_bytes for device in hosts.devices]
        assert sent[0][SWITCH, True] == sent[SWITCH][OTHER, True] > 0
        assert sent[OPTIMIZER][OTHER, False] == sent[OTHER][SWITCH, False] == sent[SWITCH][0, False]
        assert sent[OTHER][1, False] == sent[OTHER][SWITCH, False] == pulled_bytes(hosts, 2)


def pulled_bytes(hosts: Hosts, steps: int) -> int:
    model = hosts.model
    return 2 * steps * sum(unit.num_elements for unit in model.units) * model.pulled.itemsize


def placed(client_nodes: tuple[int, ...], device_nodes: tuple[int, ...]) -> Placement:
    proxies = tuple(device_nodes.index(node) for node in client_nodes)
    ranks = tuple(range(len(client_nodes) + len(device_nodes)))
    return Placement(
        client_nodes=client_nodes, device_nodes=device_nodes, local_proxies=proxies, ranks=ranks, planner=Coarse(),
        num_sync_groups=1,
    )  # fmt: skip


TWO_PROXIES = "workers of one host by two devices"
TWO_DEVICES = "a host with two devices and two optimizer nodes"
OTHERS: dict[str, dict[str, object]] = {
    "an optimizer node on a worker's host": {"nodes": (0,), "switches": {}},
    "the same by a switch that another stands before": {"nodes": (0,), "switches": {SWITCH: [1], OTHER: [SWITCH]}},
    "an optimizer node whose host's workers are not the first": {
        "nodes": (1,), "switches": {1: [SWITCH], SWITCH: [0]},
    },
    "a worker's device that is a switch": {"switches": {1: [0], OPTIMIZER: [1]}},
    "two optimizer nodes": {"nodes": (OPTIMIZER, OTHER), "switches": {SWITCH: [0, 1]}},
    "two optimizer nodes on workers' hosts": {"nodes": (0, 1), "switches": {}},
    "hosts whose workers are not side by side": {
        "placement": placed((0, 1, 0, 1), (0, 1, 2, 3)), "order": ((0, 2), (1, 3)), "switches": {SWITCH: [0, 1]},
    },
    "workers one by one below switches of their own": {
        "placement": placed((0, 1, 2), (0, 1, 2, 3, 4)), "order": (0, 1, 2), "switches": {OTHER: [0, 1]},
    },
    "a switch on a worker's host": {
        "placement": placed((0, 0, 1), (0, 1, 2, 3, 0)), "switches": {OTHER: [0, 1]},
    },
    TWO_PROXIES: {"placement": replace(placed((0, 0, 1), (0, 1, 2, 3, 0)), local_proxies=(0, 4, 1)), "switches": {}},
    TWO_DEVICES: {"placement": placed((0, 0, 1), (0, 1, 2, 3, 0)), "nodes": (2, OPTIMIZER), "switches": {}},
}  # fmt: skip


@pytest.mark.parametrize("loss", [0.0, 0.1], ids=["all comes", "one in ten is lost"])
@pytest.mark.parametrize("other", OTHERS)
def test_other_trees_do_too(other: str, loss: float, monkeypatch: pytest.MonkeyPatch) -> None:
    one = list(OTHERS).index(other)  # seeds give sizes and types too
    for seed in SEEDS[::5] if takes_all() else SEEDS[one : one + 1]:
        made(seed, monkeypatch, loss=loss, **OTHERS[other]).train(2)


@pytest.mark.parametrize("tree", TREES)
def test_packets_go_by_mpi_too(tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "MPI_PAYLOAD_BYTES", 192)
    for seed in SEEDS[::5] if takes_all() else SEEDS[11:12]:
        hosts = made(seed, monkeypatch, switches=TREES[tree], loss=0.0, network="mpi")
        hosts.train(2)
        assert not hosts.num_resent


@pytest.mark.parametrize("how", ["int64", "int32-switchml"])
@pytest.mark.parametrize("tree", [*TREES, "an optimizer node on a worker's host", "two optimizer nodes"])
def test_integers_are_added_in_any_tree(tree: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = OTHERS.get(tree) or {"switches": TREES[tree]}
    for seed in SEEDS[::7] if takes_all() else SEEDS[16:17]:
        hosts = made(seed, monkeypatch, loss=0.1, sum=how, is_packed=True, **options)
        hosts.train(2)


def test_numbers_on_the_wire_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    modulus = 256
    monkeypatch.setattr(frames, "WIRE_MODULUS", modulus)
    monkeypatch.setattr(frames, "unwrapped", partial(unwrapped, modulus=modulus))
    for seed in SEEDS[::12] if takes_all() else SEEDS[:1]:
        hosts = made(seed, monkeypatch, switches=TREES["a switch"], loss=0.1)
        hosts.train(8)
        assert hosts.num_transmissions > 1.5 * modulus
