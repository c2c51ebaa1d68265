"""One step of a DistributedOptimizer on every rank, recorded where it meets others: `step_of_training.py FOLDER SPLIT`.

Mailboxes say which records were sent and read, a device what it reads, writes and sends of a ring, and the progress
thread what the workers' ring sends. Each rank writes its log; workers also their buckets, and how they are routed.
"""

import atexit
import json
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import coarse
from coarse.protocol.records import Push, Ready, key_of
from coarse.proxy.instructions import Reduce
from coarse.proxy.ring_buffers import RING_HEADER_BYTES
from tests.support.transfer_log import (
    CHUNK,
    CHUNK_READ,
    PUSH,
    PUSH_READ,
    READY,
    READY_READ,
    READY_SENT,
    SET_OUT,
    WORKERS,
    Event,
    moved,
    of_shards,
)

log: list[Event] = []
buckets: list[tuple[str, int]] = []
set_out: set[int] = set()
"""Keys that were pushed."""


def record_mailbox() -> None:
    """Which records of contributions and results are sent and read."""
    from coarse.transport.mailbox import Mailbox

    send, records = Mailbox.send, Mailbox.records

    def recorded_send(box, peer, record):
        if isinstance(record, Push):
            if record.key not in set_out:  # else it says more shards of what has set out
                set_out.add(record.key)
                log.append((SET_OUT, record.key, 0, "devices"))
            log.extend(of_shards(PUSH, record, peer))
        elif isinstance(record, Ready):
            log.extend(of_shards(READY_SENT, record, peer))
        return send(box, peer, record)

    def recorded_records(box) -> Iterator[object]:
        for record in records(box):
            if isinstance(record, Push):
                log.extend(of_shards(PUSH_READ, record, record.client))
            elif isinstance(record, Ready):
                log.extend(of_shards(READY_READ, record))
            yield record

    Mailbox.send, Mailbox.records = recorded_send, recorded_records


def record_device() -> None:
    """What a device takes from others, brings to others, and sends and gets of rings."""
    from coarse.proxy.device import Device
    from coarse.proxy.service import ProxyService

    reduce, send_chunk, on_chunk = ProxyService.reduce, ProxyService.send_chunk, Device.on_chunk

    def recorded_reduce(service, work):
        if isinstance(work, Reduce):
            log.extend(moved(work, service._protocol.device))
        return reduce(service, work)

    def recorded_send_chunk(service, send):
        nbytes = service._rings.frame_of(send).nbytes - RING_HEADER_BYTES
        log.append((CHUNK, send.ring.key, send.ring.shard, send.header.step, send.device, nbytes))
        return send_chunk(service, send)

    def recorded_on_chunk(device, header):
        log.append((CHUNK_READ, header.key, header.shard, header.step))
        return on_chunk(device, header)

    ProxyService.reduce, ProxyService.send_chunk = recorded_reduce, recorded_send_chunk
    Device.on_chunk = recorded_on_chunk


def record_reducer() -> None:
    """When backward has a bucket, and what goes into the workers' ring."""
    from coarse.collectives.worker_ring import WorkerRing
    from coarse.parallel.data.allreduce_stream import AllreduceStream
    from coarse.torch.ddp import peers

    reducer_of, submit, send = peers.reducer_of, AllreduceStream.submit, WorkerRing._send
    by_ring = AllreduceStream._reduce_by_ring
    under_way = [0]

    class Recorded:
        """A reducer."""

        def __init__(self, reducer) -> None:
            self._reducer = reducer

        def __getattr__(self, name: str):
            return getattr(self._reducer, name)

        def memory_of(self, descriptor, num_exact=0):
            buckets.append((descriptor.name, descriptor.num_elements))
            return self._reducer.memory_of(descriptor)

        def start(self, index: int):
            log.append((READY, key_of(buckets[index][0]), 0))
            return self._reducer.start(index)

    def recorded_submit(stream, descriptor, array):
        log.append((SET_OUT, key_of(descriptor.name), 0, "workers"))
        return submit(stream, descriptor, array)

    def recorded_by_ring(stream, descriptor, array):
        under_way[0] = key_of(descriptor.name)
        yield from by_ring(stream, descriptor, array)

    def recorded_send(ring, instructions, array, sends):
        for step in instructions:
            if hasattr(step, "header"):
                nbytes = (step.end - step.begin) * array.itemsize
                log.append((WORKERS, under_way[0], 0, step.header.step, step.device, nbytes))
        return send(ring, instructions, array, sends)

    peers.reducer_of = lambda *given, **named: Recorded(reducer_of(*given, **named))
    AllreduceStream.submit, AllreduceStream._reduce_by_ring = recorded_submit, recorded_by_ring
    WorkerRing._send = recorded_send


def main() -> None:
    """All ranks; memory devices end with `init`."""
    folder, split = Path(sys.argv[1]), sys.argv[2]
    record_mailbox()
    record_device()
    from mpi4py import MPI

    rank = MPI.COMM_WORLD.Get_rank()
    facts: dict[str, object] = {}
    atexit.register(lambda: (folder / f"{rank}.json").write_text(json.dumps({"log": log, **facts})))
    coarse.init()
    import torch

    import coarse.torch as ct
    from coarse.session import current
    from tests.mpi.torch.forced_split import force_split

    torch.set_num_threads(1)
    force_split(split)
    record_reducer()
    sizes = json.loads((folder / "sizes.json").read_text())
    torch.manual_seed(0)
    layers = [torch.nn.Linear(n, m) for n, m in pairwise(sizes)]
    model = torch.nn.Sequential(*layers)
    optimizer = ct.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
    model(torch.ones(2, sizes[0])).sum().backward()
    optimizer.step()
    client = current().require_client()
    placement = current().placement
    facts["buckets"] = buckets
    facts["facts"] = client.protocol.facts
    names = [name for name in placement.__dataclass_fields__ if name != "planner"]
    facts["placement"] = {name: getattr(placement, name) for name in names}
    facts["worker"] = client.protocol.client
    optimizer.close()
    coarse.shutdown()


if __name__ == "__main__":
    main()
