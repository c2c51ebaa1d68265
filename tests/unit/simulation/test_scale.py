"""Jobs of thousands of workers: they cost what a few nodes cost, and say the same as all nodes looked at one by one."""

from dataclasses import replace

import pytest

from benchmarks.one_for_all import both
from coarse.hardware.compute import compute_profile
from coarse.hardware.links import path_alone_s
from coarse.hardware.machine import Machine
from coarse.hardware.models import Precision, resnet50
from coarse.hardware.placement import place
from coarse.hardware.presets import load_preset
from coarse.hardware.wiring import Wiring
from coarse.simulation.representative import TurnWaits
from coarse.simulation.ring_order import in_ring_order
from coarse.simulation.scenario import Scenario
from coarse.simulation.sites import Hop
from coarse.simulation.training import simulate
from tests.unit.simulation.small_jobs import link, site_of

MODEL = resnet50()
PROFILE = compute_profile(MODEL, "v100", 64, Precision.FP32)
PRESETS = ["aws-p3", "cxl-titan2-6xcz120", "cxl-niagara2"]


def scenario(name: str, num_nodes: int, per_node: int, mode: str = "coarse") -> Scenario:
    return Scenario(
        machine=replace(load_preset(name), num_nodes=num_nodes), model=MODEL, profile=PROFILE, mode=mode,
        num_workers=num_nodes * per_node, num_nodes=num_nodes, policy="devices",
    )  # fmt: skip


def endpoint_on(machine: Machine, node: int, endpoint: str) -> str:
    """The endpoint of another node that has the place of one of the first node."""
    kind = endpoint.rstrip("0123456789")
    per_node = len(machine.tree.gpus if kind == "gpu" else machine.tree.memories)
    return f"{kind}{node * per_node + int(endpoint.removeprefix(kind))}"


@pytest.mark.parametrize("num_devices", [0, 2, 4])
def test_every_node_has_the_places_of_the_first_and_so_the_order_of_its_ring(num_devices: int):
    machine = replace(load_preset("aws-p3"), num_nodes=5)
    one = place(machine, num_workers=4, num_devices=num_devices)
    all_ = place(machine, num_workers=20, num_devices=5 * num_devices, num_nodes=5)
    assert list(all_.workers) == [endpoint_on(machine, node, each) for node in range(5) for each in one.workers]
    assert list(all_.devices) == [endpoint_on(machine, node, each) for node in range(5) for each in one.devices]
    assert list(all_.local_devices) == [node * num_devices + d for node in range(5) for d in one.local_devices]
    ordered = in_ring_order(machine, all_, workers="auto", devices="auto")
    first = ordered.workers[:4]
    assert list(ordered.workers) == [endpoint_on(machine, node, each) for node in range(5) for each in first]


@pytest.mark.parametrize("name", PRESETS)
def test_a_link_alone_is_the_one_among_all(name: str):
    machine = replace(load_preset(name), num_nodes=3)
    assert tuple(machine.link(number) for number in range(len(machine.links))) == machine.links
    assert len({link.name for link in machine.links}) == len(machine.links)


@pytest.mark.parametrize("name", PRESETS)
def test_hops_that_are_alike_take_as_long(name: str):
    machine = replace(load_preset(name), num_nodes=3)
    found: dict[object, set[float]] = {}
    for source in machine.gpus:
        for target in machine.gpus:
            path = machine.path(source, target)
            alone_s = path_alone_s([machine.links[link] for link in path], 1 << 20)
            found.setdefault(machine.wiring.likeness(source, target), set()).add(alone_s)
    assert len(found) < len(machine.gpus) ** 2
    assert all(len(times_s) == 1 for times_s in found.values())


@pytest.mark.parametrize("mode", ["allreduce", "coarse"])
def test_where_one_stands_for_all_a_job_has_the_links_that_it_uses_and_no_others(mode: str):
    job = scenario("aws-p3", 1024, 4, mode).job()
    site = job.site
    ways = (site.push, site.pull, site.between_devices, site.between_workers)
    paths = [path for way in ways for path in way.values()]
    paths += [hop.path for hop in (*site.device_hops, *site.worker_hops)]
    assert {link for path in paths for link in path} == set(range(len(site.links)))
    assert len(site.links) < 40


def test_a_job_of_thousands_of_nodes_never_builds_the_links_of_all(monkeypatch):
    def refuse(_: Wiring) -> None:
        raise AssertionError("all links were built")

    asked = scenario("aws-p3", 2560, 4)
    monkeypatch.setattr(Wiring, "links", property(refuse))
    assert simulate(asked.job()).iteration_s > 0


def test_who_says_up_to_how_many_workers_each_is_simulated_has_each_or_one():
    asked = scenario("aws-p3", 2, 4)
    each, one = (simulate(replace(asked, stepwise_ranks=most).job()).iterations for most in (8, 7))
    assert {row.worker for row in each} == set(range(8))
    assert {row.worker for row in one} == {0}


@pytest.mark.parametrize(
    ("mode", "share", "within"), [("allreduce", 0, 0.03), ("coarse", 1, 0.08), ("coarse", 0.7, 0.08)]
)
@pytest.mark.parametrize("num_nodes", [2, 4])
def test_one_for_all_takes_as_long_as_every_worker(mode: str, share: float, within: float, num_nodes: int):
    """On nodes whose hops are unlike and whose workers share links; the benchmark one_for_all has more workers."""
    one, each = (simulate(job) for job in both(scenario("aws-p3", num_nodes, 4, mode), share))
    assert one.iteration_s == pytest.approx(each.iteration_s, rel=within)


def test_a_link_that_all_use_alike_is_divided_and_one_that_the_ring_crosses_once_is_not():
    job = scenario("aws-p3", 32, 4).job()
    part_of = {
        link.name: link.bytes_per_s / alone.bytes_per_s
        for link, alone in zip(job.site.links, job.site.alone_links, strict=True)
    }
    assert part_of["node0 network up"] == 1  # the node's last device sends on it, and the other way round its first
    # A worker's push and pull, and both directions of the ring, which the one sends on another device's link.
    assert part_of["node0 gpu1 duplex"] == pytest.approx(1 / 2)


def test_the_wait_between_chunks_is_the_start_up_where_a_ring_s_hops_are_alike():
    machine = replace(load_preset("aws-p3"), num_nodes=3, nvlink=False, cci=False)
    asked = Scenario(
        machine=machine, model=MODEL, profile=PROFILE, mode="coarse", num_workers=3, num_nodes=3, stepwise_ranks=1
    )
    site = asked.job().site
    assert site.device_hops == site.worker_hops == ()
    assert TurnWaits(site, ()).between_turns_s((0,), 1 << 20) is None


def test_in_a_long_ring_a_slow_hop_hides_its_start_up_behind_faster_hops():
    links = (link("slow", latency_s=5e-6, bytes_per_s=1e9), link("fast", latency_s=1e-6, bytes_per_s=4e9))
    site = replace(site_of(2), links=links, push={}, pull={}, between_devices={}, between_workers={})
    waits = TurnWaits(site, (Hop((0,), 1), Hop((1,), 3)))
    assert waits.between_turns_s((0,), 1_000_000) == 0  # a mean hop takes (1005 + 3 * 251) / 4 us, fewer than 1000
    assert waits.between_turns_s((0,), 1_000) == pytest.approx((6e-6 + 3 * 1.25e-6) / 4 - 1e-6)
