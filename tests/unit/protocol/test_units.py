import pytest

from coarse.protocol.units import GIB, KIB, MIB, bytes_per_s_from_gbit_per_s, gbit_per_s_from_bytes_per_s


def test_byte_units_are_powers_of_1024():
    assert (KIB, MIB, GIB) == (2**10, 2**20, 2**30)


def test_a_gigabit_is_an_eighth_of_a_decimal_gigabyte():
    assert bytes_per_s_from_gbit_per_s(100.0) == pytest.approx(12.5e9)


def test_rates_come_back_unchanged():
    assert gbit_per_s_from_bytes_per_s(bytes_per_s_from_gbit_per_s(25.0)) == pytest.approx(25.0)
