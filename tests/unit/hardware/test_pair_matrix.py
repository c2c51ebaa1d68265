"""What pairs of GPUs reach, as an outcome of the links alone."""

import numpy as np
import pytest

from coarse.hardware.machine import bandwidth_matrix, pair_s
from coarse.hardware.presets import load_preset
from coarse.protocol.units import KIB, MIB

P3, P100, T4, FPGA = (load_preset(name) for name in ("aws-p3", "sdsc-p100", "aws-g4dn", "coarse-fpga"))


def local_and_remote(machine, nbytes, *, bidirectional):
    """Means over the pairs under one switch and over all others."""
    matrix = bandwidth_matrix(machine, nbytes, bidirectional=bidirectional)
    switches = np.array([machine.switch_of(gpu) for gpu in machine.gpus])
    is_local = switches[:, None] == switches[None, :]
    others = ~np.eye(len(switches), dtype=bool)
    return matrix[is_local & others].mean(), matrix[~is_local].mean()


@pytest.mark.parametrize("nbytes", [MIB << shift for shift in range(1, 9)])
def test_v100_reaches_more_under_another_switch(nbytes):
    local, remote = local_and_remote(P3, nbytes, bidirectional=True)
    assert remote / local == pytest.approx(1.8, abs=0.1)


@pytest.mark.parametrize("nbytes", [1 * KIB, 8 * KIB, 32 * KIB, 64 * KIB, 127 * KIB])
def test_v100_reaches_about_as_much_anywhere_with_little(nbytes):
    local, remote = local_and_remote(P3, nbytes, bidirectional=True)
    assert remote / local == pytest.approx(1.0, abs=0.1)


def test_v100_reaches_what_its_stand_in_reached():
    """Tartan, DGX-1 with P100, peer-to-peer off, 256 MB: 9.6 and 10.3 one way, 9.73 and 17.8 both ways."""
    assert local_and_remote(P3, 256 * MIB, bidirectional=False) == pytest.approx((9.6e9, 10.3e9), rel=0.02)
    assert local_and_remote(P3, 256 * MIB, bidirectional=True) == pytest.approx((9.73e9, 17.8e9), rel=0.02)
    assert local_and_remote(P3, 1 * MIB, bidirectional=False) == pytest.approx((5.26e9, 5.21e9), rel=0.02)


def test_v100_is_sooner_at_a_local_pair_with_little_and_at_a_remote_one_with_much():
    def gain_s(nbytes):
        local, remote = (pair_s(P3, "gpu0", gpu, nbytes, bidirectional=True, kind="pcie") for gpu in ("gpu1", "gpu2"))
        return remote - local

    assert gain_s(1 * KIB) > 0 > gain_s(2 * MIB)


@pytest.mark.parametrize("nbytes", [1 * KIB, 64 * KIB, 2 * MIB, 256 * MIB])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_p100_with_peer_to_peer_reaches_more_under_its_own_switch(nbytes, bidirectional):
    local, remote = local_and_remote(P100, nbytes, bidirectional=bidirectional)
    assert local > 1.2 * remote


def test_a_local_pair_of_p100_reaches_what_the_paper_states():
    """COARSE III-E: 13 GB/s one way, 25 GB/s both ways."""
    assert local_and_remote(P100, 256 * MIB, bidirectional=False)[0] == pytest.approx(13e9, rel=0.01)
    assert local_and_remote(P100, 256 * MIB, bidirectional=True)[0] == pytest.approx(25e9, rel=0.01)


@pytest.mark.parametrize("nbytes", [1 * KIB, 64 * KIB, 2 * MIB, 256 * MIB])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_t4_is_indifferent(nbytes, bidirectional):
    local, remote = local_and_remote(T4, nbytes, bidirectional=bidirectional)
    assert local == pytest.approx(remote)


def times_over_cci(nbytes, direction):
    """How many times longer a load or store takes than GPU direct (COARSE figure 13)."""
    ends = ("memory0", "gpu0") if direction == "load" else ("gpu0", "memory0")
    slow, direct = (pair_s(FPGA, *ends, nbytes, bidirectional=False, kind=kind) for kind in (direction, "pcie"))
    return slow / direct


@pytest.mark.parametrize(("direction", "least", "most"), [("load", 9, 17), ("store", 1.25, 4)])
def test_gpu_direct_beats_loads_and_stores_of_the_prototype_by_the_stated_ratios(direction, least, most):
    ratios = [times_over_cci(nbytes, direction) for nbytes in (4 * KIB, 64 * KIB, 512 * KIB, 2 * MIB, 64 * MIB)]
    assert ratios == sorted(ratios)
    assert (ratios[0], ratios[-1]) == (pytest.approx(least, rel=0.01), pytest.approx(most, rel=0.01))


def test_loads_of_the_prototype_are_as_fast_at_all_sizes():
    rates = {
        nbytes / pair_s(FPGA, "memory0", "gpu0", nbytes, bidirectional=False, kind="load")
        for nbytes in (4 * KIB, 64 * KIB, 2 * MIB, 64 * MIB)
    }
    assert max(rates) == pytest.approx(min(rates))
