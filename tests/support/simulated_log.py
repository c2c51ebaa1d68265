"""Simulated iterations as the logs of transfer_log.py, on links and processors of several speeds."""

import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from unittest.mock import patch

from coarse.protocol.records import Push, Ready, key_of
from coarse.proxy.device import Device
from coarse.proxy.instructions import Reduce
from coarse.simulation import worker_ring
from coarse.simulation.devices import SimulatedDevices, SimulatedDriver
from coarse.simulation.job import DTYPE, Job
from coarse.simulation.sharded import iteration
from coarse.simulation.sharded.chains import Stream
from coarse.simulation.sharded.iteration import simulate_sharded
from coarse.simulation.sharded.job import ShardedJob
from coarse.simulation.sharded.report import ShardedReport
from coarse.simulation.training import _Training, simulate
from coarse.strategy.rounds import By
from tests.support.transfer_log import (
    CHUNK,
    CHUNK_READ,
    COMPUTED,
    GATHER,
    PUSH,
    PUSH_READ,
    READY,
    READY_READ,
    READY_SENT,
    REDUCE,
    REDUCED,
    SET_OUT,
    WORKERS,
    Event,
    moved,
    of_shards,
)

Logs = dict[str, list[Event]]
"""By rank: "worker 0", "device 1"."""
_SPREAD = 1e3
"""How many times faster or slower than modelled a link is."""


def simulated_logs(job: Job, num_runs: int) -> list[Logs]:
    """Of one iteration on links and adders that are all fast, all slow, and each of its own speed, as workers are."""
    rng = random.Random(0)
    exponents = [[1.0] * len(job.site.links), [-1.0] * len(job.site.links)]
    exponents += [[rng.uniform(-1, 1) for _ in job.site.links] for _ in range(num_runs - 2)]
    found = []
    for run in exponents:
        unlike = replace(job, slow_downs=tuple(_SPREAD ** rng.uniform(-1, 1) for _ in range(job.num_workers)))
        found.append(_logs_of(_at_speeds(unlike, [_SPREAD**exponent for exponent in run])))
    return found


def _at_speeds(job: Job, factors: list[float]) -> Job:
    links = tuple(
        replace(link, bytes_per_s=link.bytes_per_s * factor, latency_s=link.latency_s / factor, table=())
        for link, factor in zip(job.site.links, factors, strict=True)
    )
    adder_bytes_per_s = job.site.adder_bytes_per_s * factors[0]
    return replace(job, site=replace(job.site, links=links, adder_bytes_per_s=adder_bytes_per_s), num_iterations=1)


def _logs_of(job: Job) -> Logs:
    placement = job.placement
    logs: Logs = {f"worker {client}": [] for client in range(placement.num_clients)}
    logs |= {f"device {device}": [] for device in range(placement.num_devices)}
    keys = [gradient.descriptor(0).name for gradient in job.gradients]
    with _recorded(job, logs, keys):
        simulate(job)
    return logs


@contextmanager
def _recorded(job: Job, logs: Logs, names: list[str]) -> Iterator[None]:
    keys = [key_of(name) for name in names]
    num_workers = job.num_workers

    def worker(number: int) -> list[Event]:
        return logs[f"worker {number}"]

    def device(number: int) -> list[Event]:
        return logs[f"device {number}"]

    on_gradient, set_out = _Training._on_gradient, _Training._set_out

    def recorded_gradient(training, at, position):
        worker(at).append((READY, keys[position], 0))
        return on_gradient(training, at, position)

    def recorded_set_out(training, at, buckets):
        for position, by in buckets:
            worker(at).append((SET_OUT, keys[position], 0, by.value))
            set_out(training, at, [(position, by)])

    push, on_record, send = SimulatedDevices.push, Device.on_record, SimulatedDevices.send
    pull, on_chunk = SimulatedDevices._pull, Device.on_chunk

    def recorded_push(devices, client, key, **options):
        state = devices.clients[client].keys[key]
        for target, first, last in state.plan.targets(client):
            peer = num_workers + target
            worker(client).extend((PUSH, key, shard, peer) for shard in range(first, last))
        return push(devices, client, key, **options)

    def recorded_record(one, record):
        if isinstance(record, Push):
            device(one.protocol.device).extend(of_shards(PUSH_READ, record, record.client))
        return on_record(one, record)

    def recorded_pull(devices, client, ready):
        worker(client).extend(of_shards(READY_READ, ready))
        return pull(devices, client, ready)

    def recorded_chunk_read(one, header):
        device(one.protocol.device).append((CHUNK_READ, header.key, header.shard, header.step))
        return on_chunk(one, header)

    send_chunk, reduce = SimulatedDriver.send_chunk, SimulatedDriver.reduce

    def recorded_send_chunk(driver, sent):
        nbytes = (sent.end - sent.begin) * driver.chunk_kind(sent)[0]
        event = (CHUNK, sent.ring.key, sent.ring.shard, sent.header.step, sent.device, nbytes)
        device(driver._device).append(event)
        return send_chunk(driver, sent)

    def recorded_reduce(driver, work):
        if isinstance(work, Reduce):
            device(driver._device).extend(moved(work, driver._device))
        return reduce(driver, work)

    def recorded_send(number, devices, sent):
        if isinstance(sent.record, Ready):
            device(number).extend(of_shards(READY_SENT, sent.record, sent.endpoint))
        return send(devices, sent)

    ring_send = worker_ring.WorkerRing.send

    def recorded_ring_send(ring, at, sent):
        nbytes = (sent.end - sent.begin) * DTYPE.itemsize
        key = keys[job.gradients_by(By.WORKERS)[sent.ring.key]]
        worker(at).append((WORKERS, key, 0, sent.header.step, sent.device, nbytes))
        return ring_send(ring, at, sent)

    make_driver = SimulatedDriver.__init__

    def recorded_driver(driver, devices, number):
        make_driver(driver, devices, number)
        driver.send = lambda sent: recorded_send(number, devices, sent)

    patches: Mapping[tuple[type, str], object] = {
        (_Training, "_on_gradient"): recorded_gradient,
        (_Training, "_set_out"): recorded_set_out,
        (SimulatedDevices, "push"): recorded_push,
        (SimulatedDevices, "_pull"): recorded_pull,
        (Device, "on_record"): recorded_record,
        (Device, "on_chunk"): recorded_chunk_read,
        (SimulatedDriver, "__init__"): recorded_driver,
        (SimulatedDriver, "send_chunk"): recorded_send_chunk,
        (SimulatedDriver, "reduce"): recorded_reduce,
        (worker_ring.WorkerRing, "send"): recorded_ring_send,
    }
    with ExitStack() as stack:
        for (kind, name), recorded in patches.items():
            stack.enter_context(patch.object(kind, name, recorded))
        yield



def simulated_sharded_logs(job: ShardedJob, num_runs: int = 12) -> tuple[list[Logs], ShardedReport, dict[str, int]]:
    """Of one iteration on links and units of several speeds, each as "worker 0", which stands for all; the last one's
    report, and by "backward gather of UNIT" the bytes that each GPU has loaded from the host."""
    rng = random.Random(0)
    found, loaded = [], {}
    for number in range(num_runs):
        scale = [_SPREAD ** (1 - 2 * number if number < 2 else rng.uniform(-1, 1)) for _ in job.units]
        units = tuple(
            replace(unit, forward_s=unit.forward_s * factor, backward_s=unit.backward_s * factor)
            for unit, factor in zip(job.units, scale, strict=True)
        )
        log: list[Event] = []
        with _recorded_units(log, loaded):
            report = simulate_sharded(replace(job, units=units))
        found.append({"worker 0": log})
    return found, report, loaded


@contextmanager
def _recorded_units(log: list[Event], loaded: dict[str, int]) -> Iterator[None]:
    kind, queue = iteration._Iteration, iteration._Queue
    gather, computed, reduce, reduced, submit = kind._gather, kind._computed, kind._reduce, kind._reduced, queue.submit
    under_way: list[str] = []

    def phase_of(slot) -> str:
        return "backward" if slot.is_backward else "forward"

    def recorded_gather(one, number, slot):
        log.extend((GATHER, phase_of(slot), unit.name) for unit in slot.gathers)
        return gather(one, number, slot)

    def recorded_computed(one, slot, begin_s):
        log.append((COMPUTED, phase_of(slot), slot.unit.name))
        return computed(one, slot, begin_s)

    def recorded_reduce(one, unit):
        log.append((REDUCE, "backward", unit.name))
        under_way.append(unit.name)
        return reduce(one, unit)

    def recorded_reduced(one):
        log.append((REDUCED, "backward", under_way.pop(0)))
        return reduced(one)

    def recorded_submit(one, phase, what, unit, action):
        if one._stream is Stream.LOAD:
            loaded[f"{what} of {unit}"] = phase[0].nbytes
        return submit(one, phase, what, unit, action)

    with ExitStack() as stack:
        for owner, name, recorded in (
            (kind, "_gather", recorded_gather),
            (kind, "_computed", recorded_computed),
            (kind, "_reduce", recorded_reduce),
            (kind, "_reduced", recorded_reduced),
            (queue, "submit", recorded_submit),
        ):
            stack.enter_context(patch.object(owner, name, recorded))
        yield
