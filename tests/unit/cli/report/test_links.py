"""Links of a picture: their kinds, their capacities, and which of them are shown."""

from types import SimpleNamespace

import pytest

from coarse.cli.report.links import busiest_of_each_kind, kind_of, links_of
from coarse.cli.report.timeline import Capacity, LinkUse, Window
from coarse.hardware.degradation import RateChange
from coarse.hardware.links import Link
from coarse.simulation.recording import Transfer

KINDS = {
    "gpu0 up": "gpu up or down",
    "gpu11 down": "gpu up or down",
    "node3 gpu0 down": "gpu up or down",
    "gpu1 duplex": "gpu duplex",
    "gpu1 cci up": "gpu cci up or down",
    "gpu1 load": "gpu load",
    "switch2 turn": "switch turn",
    "node0 socket1 crossing": "socket crossing",
    "node1 network up": "network up or down",
    "gpu0 - gpu2 up": "NVLink up or down",
    "node2 gpu4 - gpu6 down": "NVLink up or down",
}


def use_of(name, *, nbytes=1e9, rate=1e9):
    """A link that carried so much in two equal parts of the time."""
    capacity = (Capacity(0.0, rate),)
    bins = (nbytes / 2, nbytes / 2)
    return LinkUse(
        name=name, kind=kind_of(name), carries=("pushes",), capacity=capacity, nbytes=nbytes, bytes_per_s=bins
    )


@pytest.mark.parametrize("link", KINDS)
def test_a_kind_is_a_name_without_numbers_and_directions(link):
    assert kind_of(link) == KINDS[link]


def test_the_busiest_of_each_kind_is_the_one_that_uses_most_of_its_capacity():
    uses = [
        use_of("gpu0 duplex", nbytes=8, rate=80),
        use_of("gpu1 duplex", nbytes=9, rate=80),
        use_of("switch0 up", nbytes=5, rate=10),
        use_of("switch1 down", nbytes=4, rate=10),
        use_of("switch0 down", nbytes=3, rate=10),
    ]
    switch, gpu = busiest_of_each_kind(uses, 1.0)
    assert (switch.name, switch.others) == ("switch0 up", ("switch1 down", "switch0 down"))
    assert (gpu.name, gpu.others) == ("gpu1 duplex", ("gpu0 duplex",))


def test_nvlinks_of_two_capacities_are_two_kinds():
    uses = [
        use_of("gpu0 - gpu2 up", rate=20e9),
        use_of("gpu2 - gpu6 up", rate=20e9),
        use_of("gpu0 - gpu4 down", rate=40e9),
    ]
    assert [use.name for use in busiest_of_each_kind(uses, 1.0)] == ["gpu0 - gpu2 up", "gpu0 - gpu4 down"]


def test_bytes_are_spread_over_a_transfers_time_and_say_whose_they_are():
    link = Link(name="gpu0 up", latency_s=0.0, bytes_per_s=100.0)
    job = SimpleNamespace(site=SimpleNamespace(links=(link,)), rate_changes=())
    push = Transfer(("push", 0), 0, (0,), 80, 8.0, 16.0)
    ring = Transfer(("workers", 0), 0, (0,), 20, 10.0, 12.0)
    (use,) = links_of(job, [push, ring], Window(10.0, 20.0))
    assert use.carries == ("pushes", "ring of workers")
    assert use.nbytes == pytest.approx(60 + 20)  # a quarter of the push came before
    bin_s = 10.0 / len(use.bytes_per_s)
    assert sum(rate * bin_s for rate in use.bytes_per_s) == pytest.approx(use.nbytes)
    assert use.bytes_per_s[0] == pytest.approx(20.0)
    assert use.share(10.0) == pytest.approx(0.08)


def test_a_link_that_changes_has_the_capacity_of_its_time():
    links = (
        Link(name="gpu0 up", latency_s=0.0, bytes_per_s=100.0),
        Link(name="gpu1 up", latency_s=0.0, bytes_per_s=1.0),
    )
    changes = (RateChange(1.0, 0, 50.0), RateChange(14.0, 0, 25.0), RateChange(15.0, 1, 9.0), RateChange(30.0, 0, 9.0))
    job = SimpleNamespace(site=SimpleNamespace(links=links), rate_changes=changes)
    (use,) = links_of(job, [Transfer(("pull", 0), 0, (0,), 70, 10.0, 20.0)], Window(10.0, 20.0))
    assert use.capacity == (Capacity(0.0, 50.0), Capacity(4.0, 25.0))
    assert use.share(10.0) == pytest.approx(70 / (4 * 50 + 6 * 25))
