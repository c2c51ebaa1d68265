"""Rates in tc's units: bits are never bytes."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.errors import ConfigError
from coarse.launch.cluster.rate import FASTEST_BIT_PER_S, SLOWEST_BIT_PER_S, LinkRate, rate_from_text

ETHERNET_FRAME_BYTES = 1514


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [("100mbit", 12.5e6), ("1gbit", 125e6), ("512kbit", 64e3), ("2.5Gbit", 312.5e6), (" 10 mbit ", 1.25e6)],
)
def test_a_rate_in_bits_becomes_an_eighth_in_bytes(text, bytes_per_s):
    assert rate_from_text(text).bytes_per_s == bytes_per_s


@pytest.mark.parametrize(
    "text", ["100", "mbit", "100mbps", "100MB/s", "-1mbit", "0mbit", "1e3mbit", "nanmbit", "", "1tbit"]
)
def test_anything_else_is_refused(text):
    with pytest.raises(ConfigError, match="--rate must"):
        rate_from_text(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("100mbps", "tc's bps are bytes per second, so say bits"),
        ("100 MB/s", "--rate must be a number of kbit, mbit, gbit (per second), such as 100mbit, got '100 MB/s'"),
        ("1kbit", "--rate must lie between 64kbit and 100gbit, got '1kbit'"),
        ("101gbit", "--rate must lie between 64kbit and 100gbit, got '101gbit'"),
    ],
)
def test_a_refusal_says_what_is_wanted(text, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        rate_from_text(text)


@given(st.integers(SLOWEST_BIT_PER_S, FASTEST_BIT_PER_S))
def test_the_text_of_a_rate_reads_back_as_the_rate(bit_per_s):
    rate = LinkRate(bit_per_s)
    assert not rate.text.endswith("000bit")
    if rate.text.endswith(("kbit", "mbit", "gbit")):
        assert rate_from_text(rate.text) == rate
    else:
        assert rate.text == f"{bit_per_s}bit"


@given(st.integers(SLOWEST_BIT_PER_S, FASTEST_BIT_PER_S))
def test_the_bucket_lets_a_whole_frame_pass_and_little_more_than_the_rate(bit_per_s):
    rate = LinkRate(bit_per_s)
    assert rate.burst_bytes >= 2 * ETHERNET_FRAME_BYTES
    assert rate.burst_bytes <= max(4096, 0.01 * rate.bytes_per_s)


def test_the_bucket_in_tcs_words():
    words = "tbf rate 100000000bit burst 62500b latency 50000us"
    assert " ".join(LinkRate(100_000_000).token_bucket()) == words
