"""A ring of workers goes where its slowest hop is fastest."""

from dataclasses import replace

from coarse.hardware.placement import place
from coarse.hardware.presets import load_preset
from coarse.simulation.ring_order import in_ring_order

P3 = load_preset("aws-p3")


def test_four_workers_of_a_dgx_1_form_a_ring_of_nvlinks():
    workers = in_ring_order(P3, place(P3, num_workers=4, num_devices=0), workers="auto", devices="auto").workers
    for here, there in zip(workers, workers[1:] + workers[:1], strict=True):
        P3.path(here, there, kind="nvlink")  # ConfigError where there is none


def test_memory_devices_played_by_gpus_do_so_too():
    devices = in_ring_order(P3, place(P3, num_workers=4, num_devices=4), workers="auto", devices="auto").devices
    for here, there in zip(devices, devices[1:] + devices[:1], strict=True):
        P3.path(here, there, kind="nvlink")


def test_each_worker_keeps_its_local_device():
    before = place(P3, num_workers=4, num_devices=4)
    after = in_ring_order(P3, before, workers="auto", devices="auto")
    pairs = [
        {worker: places.devices[local] for worker, local in zip(places.workers, places.local_devices, strict=True)}
        for places in (before, after)
    ]
    assert pairs[0] == pairs[1]


def test_where_all_hops_are_equal_the_order_stays():
    t4 = load_preset("aws-g4dn")
    places = place(t4, num_workers=2, num_devices=2)
    assert in_ring_order(t4, places, workers="pcie", devices="pcie") == places


def test_workers_stay_on_their_nodes():
    two = replace(P3, num_nodes=2)
    places = place(two, num_workers=8, num_devices=0, num_nodes=2)
    workers = in_ring_order(two, places, workers="auto", devices="auto").workers
    assert [two.node_of(worker) for worker in workers] == [0] * 4 + [1] * 4
