"""What a machine or user without the means is told."""

import re

import pytest

from coarse.errors import ClusterError
from coarse.launch.cluster.plan import PROGRAMS, require_capabilities, require_programs

STATUS = "Name:\tpython\nCapInh:\t0000000000000000\nCapEff:\t{:016x}\nThreads:\t1\n"
NET_ADMIN, SYS_ADMIN = 1 << 12, 1 << 21


@pytest.mark.parametrize(
    ("effective", "lacking"),
    [(0, "CAP_NET_ADMIN and CAP_SYS_ADMIN"), (SYS_ADMIN, "CAP_NET_ADMIN"), (NET_ADMIN | 1, "CAP_SYS_ADMIN")],
)
def test_a_process_without_the_capabilities_is_told_which_it_lacks(effective, lacking):
    message = f"needs root (CAP_NET_ADMIN and CAP_SYS_ADMIN), and this process lacks {lacking}; run it as root"
    with pytest.raises(ClusterError, match=re.escape(message)):
        require_capabilities(STATUS.format(effective))


def test_a_process_with_both_passes_whoever_it_belongs_to():
    require_capabilities(STATUS.format(NET_ADMIN | SYS_ADMIN))


def test_programs_that_are_missing_are_named_with_their_packages():
    with pytest.raises(ClusterError, match=r"and ip, tc cannot be found on PATH; install iproute2, or"):
        require_programs(lambda name: None if name in ("ip", "tc") else f"/bin/{name}")
    require_programs({name: f"/bin/{name}" for name in PROGRAMS}.get)
