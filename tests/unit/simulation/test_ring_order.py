"""A ring of workers goes where its slowest hop is fastest."""

from dataclasses import replace

from coarse.emulation.placement import place
from coarse.emulation.presets import load_preset
from coarse.simulation.ring_order import in_ring_order

P3 = load_preset("aws-p3")


def test_four_workers_of_a_dgx_1_form_a_ring_of_nvlinks():
    workers = in_ring_order(P3, place(P3, num_workers=4, num_devices=0), "auto").workers
    for here, there in zip(workers, workers[1:] + workers[:1], strict=True):
        P3.path(here, there, kind="nvlink")  # ConfigError where there is none


def test_each_worker_keeps_its_local_device():
    before = place(P3, num_workers=4, num_devices=4)
    after = in_ring_order(P3, before, "auto")
    assert after.devices == before.devices
    assert dict(zip(after.workers, after.local_devices, strict=True)) == dict(
        zip(before.workers, before.local_devices, strict=True)
    )


def test_where_all_hops_are_equal_the_order_stays():
    t4 = load_preset("aws-g4dn")
    places = place(t4, num_workers=2, num_devices=2)
    assert in_ring_order(t4, places, "pcie") == places


def test_workers_stay_on_their_nodes():
    two = replace(P3, num_nodes=2)
    workers = in_ring_order(two, place(two, num_workers=8, num_devices=0, num_nodes=2), "auto").workers
    assert [two.node_of(worker) for worker in workers] == [0] * 4 + [1] * 4
