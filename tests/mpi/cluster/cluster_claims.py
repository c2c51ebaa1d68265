"""What holds on every worker of a cluster in a box of several nodes: `cluster_claims.py FOLDER RATE_BYTES_PER_S`.

Rank 0 writes the bytes of its measured push_pulls to FOLDER/measured.json.
"""

import json
import os
import socket
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import coarse
from coarse.collectives.schedule import bytes_between_nodes
from coarse.collectives.shape import Collective, GroupShape
from coarse.launch.cluster.interfaces import crossed
from coarse.launch.cluster.plan import NODE_INTERFACE
from coarse.parallel.groups import shared_by_groups
from coarse.protocol.dtypes import DType
from coarse.session import current
from tests.support.claims import report_claims

NUM_BYTES = 16_000_000
RECORDS_BYTES = 100_000
"""More than the records and headers that go with a push_pull."""
ALLOWED = 1.1
"""Of the rate: a timer is not exact, and what the bucket saved up may pass at once. Of bytes: headers of packets."""

folder, rate_bytes_per_s = Path(sys.argv[1]), float(sys.argv[2])


def workers_of_a_node_see_each_other_and_no_others() -> None:
    """By MPI's shared-memory split, by host name, and by coarse's own count."""
    workers = current().worker_comm
    near = workers.Split_type(MPI.COMM_TYPE_SHARED)
    names = np.zeros((workers.Get_size(), 64), np.uint8)
    mine = np.zeros(64, np.uint8)
    text = socket.gethostname().encode()
    mine[: len(text)] = np.frombuffer(text, np.uint8)
    workers.Allgather(mine, names)
    num_same = sum((row == mine).all() for row in names)
    num_nodes = len({row.tobytes() for row in names})
    assert num_nodes > 1
    assert near.Get_size() == num_same == workers.Get_size() // num_nodes
    assert near.Get_rank() == coarse.local_rank()
    assert current().placement.nodes == tuple(range(num_nodes))


def nodes_share_files_but_neither_memory_nor_processes() -> None:
    """/dev/shm and process ids are a node's own; the folder of the test is everybody's."""
    workers = current().worker_comm
    mark = Path(f"/dev/shm/mark-{socket.gethostname()}")
    mark.touch()
    workers.Barrier()
    assert [path.name for path in Path("/dev/shm").glob("mark-*")] == [mark.name]
    workers.Barrier()
    mark.unlink(missing_ok=True)
    assert folder.is_dir()
    assert os.readlink("/proc/1/ns/net") == os.readlink("/proc/self/ns/net")


def sums_over_the_network_are_numpys() -> None:
    """Of whole numbers, exactly; of all sizes from one element to several pieces of a shard."""
    size = coarse.size()
    for num_elements in (1, 5, 1023, 300_000):
        for dtype in (np.float32, np.float64, np.int32):
            rows = np.random.default_rng(num_elements).integers(-99, 99, (size, num_elements)).astype(dtype)
            name = f"{np.dtype(dtype).name}-{num_elements}"
            found = coarse.push_pull(rows[coarse.rank()], name, op=coarse.Sum)
            np.testing.assert_array_equal(found, rows.sum(axis=0))


def each_node_sends_what_a_ring_of_nodes_must_and_no_faster_than_its_link() -> None:
    """2 (N - 1) / N times the bytes (a reduce-scatter and an all-gather of N nodes), at most at the rate."""
    num_nodes = len(current().placement.nodes)
    array = np.ones(NUM_BYTES // 4, np.float32)
    coarse.push_pull(array, "measured")  # registered, and its memory touched
    before = sent_by_this_node()
    coarse.barrier()
    began_s = time.perf_counter()
    coarse.push_pull(array, "measured")
    coarse.barrier()
    took_s = time.perf_counter() - began_s
    sent_bytes = sent_by_this_node() - before
    wanted_bytes = 2 * (num_nodes - 1) / num_nodes * NUM_BYTES
    assert wanted_bytes <= sent_bytes <= wanted_bytes + RECORDS_BYTES, (wanted_bytes, sent_bytes)
    assert sent_bytes / took_s <= ALLOWED * rate_bytes_per_s, (sent_bytes, took_s)
    if coarse.rank() == 0:
        row = {"sent_bytes": sent_bytes, "took_s": took_s, "rate_bytes_per_s": rate_bytes_per_s}
        (folder / "measured.json").write_text(json.dumps(row))


def collectives_cross_the_interface_with_what_their_formulas_say() -> None:
    """By the kernel: (N-1)/N W for each of an all-gather and a reduce-scatter along rails, (G-1)/G W round a ring."""
    from coarse.collectives.group import WorkerGroup

    everybody = tuple(range(coarse.size()))
    shape = GroupShape(current().placement.client_nodes)
    full = np.ones(NUM_BYTES // 8, np.float32)
    own = full[: len(full) // coarse.size()].copy()
    for collective in Collective:
        group = WorkerGroup(shared_by_groups(current()), everybody, collective)
        group.barrier()
        before = crossed(Path("/proc/net/dev").read_text(), NODE_INTERFACE)
        group.barrier()
        group.all_gather(full, own, what="gather").wait()
        group.reduce_scatter(own, full, DType.FLOAT32, coarse.Average, what="scatter").wait()
        group.barrier()
        count = crossed(Path("/proc/net/dev").read_text(), NODE_INTERFACE).since(before)
        wanted_bytes = 2 * bytes_between_nodes(collective, shape, full.nbytes)
        for nbytes in (count.sent_bytes, count.received_bytes):
            assert wanted_bytes <= nbytes <= wanted_bytes * ALLOWED + RECORDS_BYTES, (collective, wanted_bytes, nbytes)
        group.close()


def sent_by_this_node() -> int:
    """What the devices of this node have sent to others so far."""
    return sum(int(device["between_nodes_sent_bytes"]) for device in coarse.statistics()["devices"].values())


coarse.init()
report_claims(
    [
        workers_of_a_node_see_each_other_and_no_others,
        nodes_share_files_but_neither_memory_nor_processes,
        sums_over_the_network_are_numpys,
        each_node_sends_what_a_ring_of_nodes_must_and_no_faster_than_its_link,
        collectives_cross_the_interface_with_what_their_formulas_say,
    ],
    folder,
)
coarse.shutdown()
