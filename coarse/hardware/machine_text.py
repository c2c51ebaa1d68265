# Pure: no MPI, threads, clock or environment.
"""Text of a machine file that states a given machine."""

from collections.abc import Iterator, Mapping

from coarse.hardware.machine import Machine
from coarse.hardware.quantities import SizeTable
from coarse.hardware.shared_pool import SharedPool
from coarse.hardware.topology_tree import HOST
from coarse.hardware.unlike_nodes import UnlikeNodes, ranges_text
from coarse.hardware.wire import Wire

_COHERENCE_OPTIONS = (
    "load_outstanding_bytes", "store_outstanding_bytes", "software_flush_bytes_per_s", "software_flush_latency_s",
)  # fmt: skip


def machine_text(machine: Machine) -> str:
    """Return a machine as TOML in base units, so that no digit is lost by converting."""
    return "\n".join(_lines(machine)) + "\n"


def annotated_text(machine: Machine, notes: Mapping[tuple[str, str], str]) -> str:
    """Return a machine as TOML, with a comment behind each value that has one.

    Notes are by (table, key): ("", "peer_to_peer"), ("accelerator", "name"), ("wire NAME", "latency_s").
    """
    return "\n".join(_annotated(machine_text(machine).splitlines(), notes)) + "\n"


def _annotated(lines: list[str], notes: Mapping[tuple[str, str], str]) -> Iterator[str]:
    table = ""
    for line in lines:
        key, _, value = (part.strip() for part in line.partition("="))
        if line.startswith("["):
            table = line.strip("[]")
        elif table == "wire" and key == "name":
            table = f"wire {value.strip(chr(34))}"
        note = notes.get((table, key))
        yield f"{line}  # {note}" if note else line


def _lines(machine: Machine) -> Iterator[str]:
    yield f'name = "{machine.name}"'
    yield f"peer_to_peer = {_truth(machine.peer_to_peer)}"
    yield f"nvlink_on = {_truth(machine.nvlink)}"
    yield f"cci_on = {_truth(machine.cci)}"
    if machine.pool is not None:
        yield f"pool_on = {_truth(machine.pool_on)}"
    yield f"num_nodes = {machine.num_nodes}"
    for key, wire in (("cci_wire", machine.cci_wire), ("network_wire", machine.network)):
        if wire is not None:
            yield f'{key} = "{wire.name}"'
    gpu, device, coherence = machine.accelerator, machine.memory_device, machine.coherence
    yield from ("", "[accelerator]", f'name = "{gpu.name}"', f"memory_bytes = {gpu.memory_bytes}")
    yield f"fp32_flop_per_s = {gpu.fp32_flops_per_s!r}"
    yield f"fp16_flop_per_s = {gpu.fp16_flops_per_s!r}"
    yield f"memory_bandwidth_bytes_per_s = {gpu.memory_bytes_per_s!r}"
    yield from ("", "[memory_device]", f"adder_bytes_per_s = {device.adder_bytes_per_s!r}")
    yield f"optimizer_bytes_per_s = {device.optimizer_bytes_per_s!r}"
    yield f"capacity_bytes = {device.capacity_bytes}"
    if coherence is not None:
        yield from ("", "[coherence]", f"load_bytes_per_s = {coherence.load_bytes_per_s!r}")
        yield f"store_bytes_per_s = {coherence.store_bytes_per_s!r}"
        yield f"latency_s = {coherence.latency_s!r}"
        yield f"sharer_growth = {coherence.sharer_growth!r}"
        for key in _COHERENCE_OPTIONS:
            if getattr(coherence, key) is not None:
                yield f"{key} = {getattr(coherence, key)!r}"
    if (disks := machine.disks) is not None:
        yield from ("", "[disks]", f"host_memory_bytes = {disks.host_memory_bytes}")
        for whose in ("worker", "optimizer"):
            yield f"{whose}_bytes_per_s = {getattr(disks, f'{whose}_bytes_per_s')!r}"
            yield f"{whose}_capacity_bytes = {getattr(disks, f'{whose}_capacity_bytes')}"
        yield f"num_optimizer_disks = {disks.num_optimizer_disks}"
    if machine.pool is not None:
        yield from _pool_lines(machine.pool)
    for wire in _wires(machine):
        yield from ("", "[[wire]]", *_wire_lines(wire))
    for level in machine.tree_levels:
        yield from ("", "[[tree_level]]", f'name = "{level.name}"', f"nodes_per_switch = {level.nodes_per_switch}")
        yield f"oversubscription = {level.oversubscription!r}"
        yield f"hop_latency_s = {level.hop_latency_s!r}"
    for group in machine.unlike_nodes:
        yield from _unlike_lines(group)
    yield from _tree_lines(machine)


def _pool_lines(pool: SharedPool) -> Iterator[str]:
    yield from ("", "[pool]", f'wire = "{pool.wire.name}"', f"num_devices = {pool.num_devices}")
    if pool.switch is not None:
        yield f'switch = "{pool.switch.name}"'
    for key in ("device_bytes_per_s", "device_latency_s", "num_uncontended_hosts", "contention_growth",
                "store_bytes_per_s", "software_flush_bytes_per_s", "software_flush_latency_s"):  # fmt: skip
        if getattr(pool, key) is not None:
            yield f"{key} = {getattr(pool, key)!r}"


def _unlike_lines(group: UnlikeNodes) -> Iterator[str]:
    yield from ("", "[[node]]", f'name = "{group.name}"', f"numbers = {ranges_text(group.ranges)}")
    yield f"compute_slow_down = {group.compute_slow_down!r}"
    yield f"nvlink_on = {_truth(group.nvlink)}"
    if group.network is not None:
        yield f'network_wire = "{group.network.name}"'


def _tree_lines(machine: Machine) -> Iterator[str]:
    for place in machine.tree.places:
        yield from ("", f"[[{place.kind.value}]]", f'name = "{place.name}"', f'wire = "{place.wire.name}"')
        if place.parent != HOST:
            yield f'parent = "{place.parent}"'
        for key, inner in (("crossing", place.crossing), ("staging", place.staging)):
            if inner is not None:
                yield f'{key} = "{inner.name}"'
    for cable in machine.nvlinks:
        first, second = cable.between
        yield from ("", "[[nvlink]]", f'between = ["{first}", "{second}"]', f'wire = "{cable.wire.name}"')


def _wire_lines(wire: Wire) -> Iterator[str]:
    yield f'name = "{wire.name}"'
    yield f"bandwidth_bytes_per_s = {wire.bytes_per_s!r}"
    yield f"latency_s = {wire.latency_s!r}"
    if wire.outstanding_bytes is not None:
        yield f"outstanding_bytes = {wire.outstanding_bytes!r}"
    for key, rate in (("duplex", wire.duplex_bytes_per_s), ("turn", wire.turn_bytes_per_s)):
        if rate is not None:
            yield f"{key}_bytes_per_s = {rate!r}"
    for direction in ("up", "down", "duplex", "turn"):
        table: SizeTable = getattr(wire, f"{direction}_table")
        if table:
            yield f"{direction}_table_bytes_s = {_table_text(table)}"


def _table_text(table: SizeTable) -> str:
    points = (f"    [{nbytes}, {seconds!r}]," for nbytes, seconds in table)
    return "\n".join(("[", *points, "]"))


def _wires(machine: Machine) -> list[Wire]:
    """Return every wire that the machine uses, each once."""
    pool = () if machine.pool is None else (machine.pool.wire, machine.pool.switch)
    others = (group.network for group in machine.unlike_nodes)
    used = [machine.cci_wire, machine.network, *others, *pool, *(cable.wire for cable in machine.nvlinks)]
    used += [wire for place in machine.tree.places for wire in (place.wire, place.crossing, place.staging)]
    return list(dict.fromkeys(wire for wire in used if wire is not None))


def _truth(value: bool) -> str:
    return "true" if value else "false"
