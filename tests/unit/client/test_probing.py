"""What a client measures, and that ties stay with the local proxy however noisy the small sizes are."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from coarse.client.probing import ProbeCopy, Probing
from coarse.protocol.config import MeasuredRouting
from coarse.protocol.plan import Cluster
from coarse.strategy.builtin import SMALLEST_BYTES, Coarse

COARSE = Coarse()
PROBING = Probing(devices=(0, 1, 2), local=1, sizes=COARSE.probes)
CLUSTER = Cluster(worker_nodes=(0,), device_nodes=(0, 0, 0), local_devices=(1,))


def table_of(seconds, probing=PROBING, strategy=COARSE, cluster=CLUSTER):
    return probing.facts(seconds, strategy, 0, cluster)


def alike(probe: ProbeCopy) -> float:
    """Seconds of a machine whose proxies are all the same."""
    return 1e-5 + probe.nbytes / 1e10


def test_sizes_double_from_4_kib_to_the_largest_partition():
    sizes = PROBING.sizes
    assert sizes[0] == SMALLEST_BYTES < COARSE.routing.min_partition_bytes
    assert sizes[-1] == COARSE.routing.max_partition_bytes
    assert all(b == 2 * a for a, b in pairwise(sizes))


def test_every_device_is_measured_at_its_latency_and_at_all_sizes_one_device_after_the_other():
    probes = list(PROBING.probes())
    assert probes == [ProbeCopy(device, nbytes) for device in (0, 1, 2) for nbytes in (0, *PROBING.sizes)]


def test_a_machine_of_equal_proxies_routes_all_to_the_local_one():
    table = table_of({probe: alike(probe) for probe in PROBING.probes()})
    assert (table.latency_proxy, table.bandwidth_proxy, table.threshold_bytes) == (1, 1, 0)


@given(st.data())
def test_noise_of_small_copies_moves_no_table_away_from_the_local_proxy(data: st.DataObject):
    """Up to 60 % at sizes below a partition's, and within the tolerance where the decision is made."""
    quiet = table_of({probe: alike(probe) for probe in PROBING.probes()})
    least = COARSE.routing.min_partition_bytes

    def noisy(probe: ProbeCopy) -> float:
        most = 0.6 if 0 < probe.nbytes < least else 0.04
        return alike(probe) * (1 + data.draw(st.floats(0.0, most)))

    table = table_of({probe: noisy(probe) for probe in PROBING.probes()})
    assert (table.latency_proxy, table.bandwidth_proxy, table.threshold_bytes) == (1, 1, 0)
    assert table.partition_bytes >= quiet.partition_bytes / 4


def test_copies_that_fit_into_a_cache_do_not_make_partitions_small():
    """Below 256 KiB ten times as fast: full bandwidth is that of memory."""
    large = MeasuredRouting(min_partition_bytes=1 << 18, max_partition_bytes=1 << 22)
    strategy = Coarse(routing=large)
    probing = Probing(devices=(0,), local=0, sizes=strategy.probes)
    alone = Cluster(worker_nodes=(0,), device_nodes=(0,), local_devices=(0,))
    slow_start = {0: 1e-6} | {nbytes: 1e-4 + nbytes / 1e9 for nbytes in probing.sizes}
    cached = {n: n / 1e11 if 0 < n < 1 << 18 else seconds for n, seconds in slow_start.items()}
    tables = [
        table_of({probe: seconds[probe.nbytes] for probe in probing.probes()}, probing, strategy, alone)
        for seconds in (slow_start, cached)
    ]
    assert tables[0] == tables[1]
    assert tables[0].partition_bytes == 1 << 21
