"""Who is blamed where the truth is known: the measurements are those of a site whose links were made slower."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coarse.hardware.degradation import at_share
from coarse.hardware.placement import place
from coarse.hardware.presets import machine_named
from coarse.simulation.adaptation import look_probe_batches
from coarse.simulation.probe_batches import ProbeBatch, ProbeTransfer, probe_batch_s
from coarse.simulation.sites import Site, coarse_site, placement_of
from coarse.simulation.slow_links import TOLERANCE, blamed_shares, estimated_links
from coarse.strategy.builtin import Coarse
from tests.unit.simulation.small_jobs import link

MB = 1_000_000


def site_of_paths(push: Mapping[tuple[int, int], tuple[int, ...]], num_links: int) -> Site:
    return Site(
        links=tuple(link(f"link {number}") for number in range(num_links)),
        push=push,
        pull={},
        between_devices={},
        between_workers={},
        adder_bytes_per_s=1e9,
    )


CROSSING = site_of_paths({(0, 0): (0, 2), (0, 1): (0, 3), (1, 0): (1, 2), (1, 1): (1, 3)}, 4)
"""Clients 0 and 1 have links 0 and 1 of their own, devices 0 and 1 have links 2 and 3."""


def measured(site: Site, shares: Mapping[int, float], probe_batches: list[ProbeBatch]):
    slow = replace(site, links=tuple(at_share(one, shares.get(n, 1.0)) for n, one in enumerate(site.links)))
    return [(probe_batch, probe_batch_s(slow, probe_batch)) for probe_batch in probe_batches]


def one_by_one(site: Site, nbytes: int = MB) -> list[ProbeBatch]:
    return [ProbeBatch((ProbeTransfer("push", *ends),), nbytes, 0) for ends in site.push]


def test_nobody_is_blamed_where_all_take_as_long_as_they_should():
    assert blamed_shares(CROSSING, measured(CROSSING, {}, one_by_one(CROSSING))) == {}


@pytest.mark.parametrize("slow", range(4))
@given(share=st.floats(0.01, 0.9))
def test_one_slow_link_is_found_where_paths_cross(slow: int, share: float):
    shares = blamed_shares(CROSSING, measured(CROSSING, {slow: share}, one_by_one(CROSSING)))
    assert set(shares) == {slow}
    assert shares[slow] == pytest.approx(share, rel=2 * TOLERANCE)


def test_a_faster_link_than_the_model_has_is_no_reason_to_blame_others():
    assert blamed_shares(CROSSING, measured(CROSSING, {0: 2.0}, one_by_one(CROSSING))) == {}


def test_of_links_that_are_always_used_together_one_is_blamed_for_both():
    site = site_of_paths({(0, 0): (0, 1), (1, 0): (2,)}, 3)
    (share,) = blamed_shares(site, measured(site, {1: 0.5}, one_by_one(site))).values()
    assert share == pytest.approx(0.5, rel=2 * TOLERANCE)


def test_two_slow_links_are_both_found():
    shares = blamed_shares(CROSSING, measured(CROSSING, {0: 0.5, 3: 0.1}, one_by_one(CROSSING)))
    assert shares == pytest.approx({0: 0.5, 3: 0.1}, rel=2 * TOLERANCE)


def test_a_way_that_draws_little_of_a_link_does_not_clear_it():
    """Link 2 is narrowed to a half of its rate; client 0 draws no more than that by a narrow link of its own."""
    site = site_of_paths({(0, 0): (0, 2), (1, 0): (1, 2)}, 3)
    site = replace(site, links=(link("narrow", bytes_per_s=4e8), *site.links[1:]))
    probe_batches = [*one_by_one(site), ProbeBatch((ProbeTransfer("push", 1, 0),), MB // 2, 0)]
    shares = blamed_shares(site, measured(site, {2: 0.5}, probe_batches))
    estimated = replace(site, links=estimated_links(site, measured(site, {2: 0.5}, probe_batches)))
    assert set(shares) <= {1, 2}
    assert probe_batch_s(estimated, probe_batches[1]) == pytest.approx((1e-5 * 2 + MB / 5e8,), rel=2 * TOLERANCE)


def test_a_loss_that_the_rest_of_the_path_hides_in_part_is_estimated_by_what_is_seen():
    """Link 1 has four times the rate of link 0; at a tenth of that it is the slower one."""
    site = site_of_paths({(0, 0): (0, 1), (1, 0): (0,)}, 2)
    site = replace(site, links=(site.links[0], link("wide", bytes_per_s=4e9)))
    (share,) = blamed_shares(site, measured(site, {1: 0.1}, one_by_one(site))).values()
    assert share == pytest.approx(0.1, rel=2 * TOLERANCE)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_estimate_of_a_presets_links_comes_to_the_measured_times(data: st.DataObject):
    """Any one link of an aws-p3 or sdsc-p100, as two workers see it."""
    machine = machine_named(data.draw(st.sampled_from(["aws-p3", "sdsc-p100"])))
    places = place(machine, num_workers=2, num_devices=2)
    site = coarse_site(machine, places, device_ring="cci", worker_ring="auto")
    probe_batches = list(look_probe_batches(placement_of(machine, places, Coarse(), num_sync_groups=2), site, 1 << 19))
    used = sorted({number for probe_batch in probe_batches for send in probe_batch.sends for number in send.path(site)})
    slow = measured(site, {data.draw(st.sampled_from(used)): data.draw(st.floats(0.05, 0.6))}, probe_batches)
    estimated = replace(site, links=estimated_links(site, slow))
    for probe_batch, seconds in slow:
        assert probe_batch_s(estimated, probe_batch) == pytest.approx(seconds, rel=0.03)
