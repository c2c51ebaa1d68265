"""Degradations as users write them, and as they change links."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.errors import ConfigError
from coarse.hardware.degradation import Degradation, RateChange, at_share, parse_degradation, rate_changes
from coarse.hardware.fabric import Fabric
from coarse.hardware.links import Link

LINKS = (
    Link(name="gpu0 up", latency_s=1e-5, bytes_per_s=1e9),
    Link(name="gpu0 down", latency_s=1e-5, bytes_per_s=2e9),
    Link(name="gpu0 - gpu1 up", latency_s=1e-5, bytes_per_s=4e9, table=((1000, 1e-5), (1_000_000, 5e-4))),
)


def test_a_degradation_is_read_from_behind_since_names_have_spaces_and_signs():
    assert parse_degradation("gpu0 - gpu1 up=0.25@1.5") == Degradation(link="gpu0 - gpu1 up", factor=0.25, at_s=1.5)
    assert parse_degradation(" a=b@c =2@0") == Degradation(link="a=b@c", factor=2.0, at_s=0.0)


@pytest.mark.parametrize("text", ["", "gpu0 up", "gpu0 up=0.5", "gpu0 up@1", "=0.5@1", "gpu0 up=half@1", "gpu0 up=1@x"])
def test_any_other_form_is_refused_with_an_example(text):
    with pytest.raises(ConfigError, match=r"LINK=FACTOR@SECONDS such as 'socket0 crossing=0\.1@2'"):
        parse_degradation(text)


@pytest.mark.parametrize(("text", "wanted"), [
    ("gpu0 up=0@1", "factor must be above 0"), ("gpu0 up=-1@1", "factor must be above 0"),
    ("gpu0 up=inf@1", "factor must be above 0 and finite"), ("gpu0 up=nan@1", "factor must be above 0"),
    ("gpu0 up=0.5@-1", "at least 0, got -1"), ("gpu0 up=0.5@inf", "got inf"), ("gpu0 up=0.5@nan", "got nan"),
])  # fmt: skip
def test_factors_and_times_that_make_no_sense_are_refused(text, wanted):
    with pytest.raises(ConfigError, match=wanted):
        parse_degradation(text)


def test_an_unknown_link_is_answered_with_the_nearest_ones():
    with pytest.raises(ConfigError, match="no link is called 'gpu0 upp'; the nearest of 3 are: gpu0 up"):
        rate_changes(LINKS, [Degradation(link="gpu0 upp", factor=0.5, at_s=0.0)])


def test_a_pattern_degrades_all_links_that_match_each_from_its_own_rate():
    changes = rate_changes(LINKS, [Degradation(link="gpu0 ?p", factor=0.5, at_s=3.0), parse_degradation("*down=0.1@2")])
    assert changes == (RateChange(2.0, 1, 2e8), RateChange(3.0, 0, 5e8))


def test_of_two_changes_at_one_time_the_later_in_the_list_comes_last():
    twice = [Degradation(link="gpu0 up", factor=factor, at_s=1.0) for factor in (0.1, 0.7)]
    assert [change.bytes_per_s for change in rate_changes(LINKS, twice)] == [1e8, 7e8]


@given(st.floats(0.01, 10.0), st.integers(1, 10_000_000), st.sampled_from(LINKS))
def test_a_link_at_a_share_takes_as_long_as_one_whose_rate_was_changed(factor: float, nbytes: int, link: Link):
    changed = Fabric([link])
    changed.set_rate(0, link.bytes_per_s * factor, 0.0)
    changed.advance(0.0)
    changed.start(0, (0,), nbytes, 0.0)
    ((end_s, _),) = changed.advance(1e4)
    assert at_share(link, factor).alone_s(nbytes) == pytest.approx(end_s, rel=1e-9)
